"""Connected apps over HTTP. What connects to them is written and never read back."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.work import inputs
from queue_app.api.work.base import WorkView, checked, ident, scope_of
from queue_app.models import ConnectedApp
from queue_app.services import connected_apps


class ConnectedAppOut(serializers.ModelSerializer[ConnectedApp]):
    """One connected app, without its server's address and secrets."""

    workspace_id = serializers.UUIDField(read_only=True)

    class Meta:
        model = ConnectedApp
        fields = ("id", "workspace_id", "provider", "server_name", "toolkit_slug", "toolkit_name", "created_at")


class ConnectedAppsView(WorkView):
    """`/api/connected-apps`"""

    @extend_schema(responses=ConnectedAppOut(many=True))
    def get(self, request: Request) -> Response:
        """The apps by name."""
        return Response(ConnectedAppOut(connected_apps.listing(scope_of(request)), many=True).data)

    @extend_schema(request=inputs.NewConnectedApp, responses={201: ConnectedAppOut})
    def post(self, request: Request) -> Response:
        """Connect an app. Admins only."""
        app = connected_apps.connect(scope_of(request), checked(inputs.NewConnectedApp, request.data))
        return Response(ConnectedAppOut(app).data, status=201)


class ConnectedAppView(WorkView):
    """`/api/connected-apps/{id}`"""

    @extend_schema(responses={200: OpenApiTypes.OBJECT})
    def delete(self, request: Request, app_id: str) -> Response:
        """Disconnect an app. Admins only."""
        connected_apps.disconnect(scope_of(request), ident(app_id, "app_id"))
        return Response({"deleted": True})
