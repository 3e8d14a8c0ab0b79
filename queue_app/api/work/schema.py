"""The OpenAPI description of the issue API, open to everyone: it holds no data."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.views import SpectacularAPIView


class SchemaView(SpectacularAPIView):
    """`/api/schema/`"""

    authentication_classes = ()
    permission_classes = ()


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Personal (`mul_`) and task (`mat_`) tokens."""

    target_class = "queue_app.auth.BearerAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The session of a person who is logged in to the admin."""

    target_class = "queue_app.auth.SessionOfPerson"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}
