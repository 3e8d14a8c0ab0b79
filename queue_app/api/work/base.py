"""What every route of the issue API shares: who calls, in which workspaces, and how a refusal looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.exceptions import APIException, NotAuthenticated, ValidationError
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from queue_app.api.work.fields import CleanJSONParser
from queue_app.auth import BearerAuthentication, Caller, SessionOfPerson
from queue_app.error_map import answer_to
from queue_app.errors import InvalidError, QueueError
from queue_app.services.scope import Scope, scope


class Known(BasePermission):
    """Every caller with a valid token; what it may do is decided by the service."""

    def has_permission(self, request: Request, view: Any) -> bool:
        return getattr(request, "caller", None) is not None


class WorkView(APIView):
    """Base of the routes: bearer tokens or a session, clean JSON in, errors out as `{"error", "code", "field"}`."""

    authentication_classes = (BearerAuthentication, SessionOfPerson)
    permission_classes = (Known,)
    parser_classes = (CleanJSONParser,)

    def get_exception_handler(self) -> Any:
        return answer_error

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        # Touching the user runs the authentication, which sets `request.caller` for the permission.
        _ = request.user
        super().initial(request, *args, **kwargs)


def caller_of(request: Request) -> Caller:
    """Who calls. Only after the permission has passed."""
    caller: Caller = request.caller  # type: ignore[attr-defined]
    return caller


def scope_of(request: Request) -> Scope:
    """The scope of the request: `workspace_id` of the query, else the `X-Workspace-ID` header, narrows it."""
    named = request.query_params.get("workspace_id") or request.headers.get("X-Workspace-ID") or ""
    return scope(caller_of(request), ident(named, "workspace_id") if named else None)


def ident(text: str, field: str) -> UUID:
    """A UUID of a query or path; InvalidError names the field."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidError(f"{field}: must be a UUID", field=field) from None


def checked(serializer: type[serializers.Serializer[Any]], data: Any, **options: Any) -> dict[str, Any]:
    """The body's known fields, checked; raises ValidationError."""
    if not isinstance(data, Mapping):
        raise ValidationError({"body": ["must be a JSON object"]})
    form = serializer(data=data, **options)
    form.is_valid(raise_exception=True)
    return dict(form.validated_data)


def answer_error(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """The response for an error that a view raised; None leaves a bug to become a 500."""
    if isinstance(error, QueueError):
        status, body = answer_to(error)
        return Response(body, status=status)
    if isinstance(error, ValidationError):
        field, text = _first(error.detail)
        return Response({"error": f"{field}: {text}" if field else text, "code": "invalid", "field": field}, 400)
    if isinstance(error, APIException):
        headers = {"WWW-Authenticate": "Bearer"} if error.status_code == 401 else None
        text = "missing authorization header" if isinstance(error, NotAuthenticated) else str(error.detail)
        return Response({"error": text, "code": error.default_code}, error.status_code, headers=headers)
    return None


def _first(detail: Any) -> tuple[str, str]:
    """The first complaint of DRF's nested detail: dotted field, text."""
    path: list[str] = []
    while not isinstance(detail, str):
        if isinstance(detail, Mapping):
            key, detail = next(iter(detail.items()))
            if key != "non_field_errors":
                path.append(str(key))
        elif isinstance(detail, Sequence) and detail:
            index = next(i for i, item in enumerate(detail) if item)
            if isinstance(detail[index], Mapping):
                path.append(str(index))
            detail = detail[index]
        else:
            return ".".join(path), "is invalid"
    return ".".join(path), str(detail)


class Query:
    """Reads query parameters with the field named in every refusal; unknown ones are ignored."""

    def __init__(self, request: Request) -> None:
        self._params = request.query_params

    def text(self, name: str) -> str:
        return str(self._params.get(name) or "").replace("\x00", "")

    def flag(self, name: str) -> bool:
        return self.text(name).lower() in ("1", "true", "yes")

    def whole(self, name: str, default: int, *, low: int = 0, high: int = 1_000_000_000) -> int:
        found = self.maybe_whole(name, low=low, high=high)
        return default if found is None else found

    def maybe_whole(self, name: str, *, low: int = 0, high: int = 1_000_000_000) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 12:
            raise InvalidError(f"{name}: must be a whole number", field=name)
        return min(max(int(text), low), high)

    def ident(self, name: str) -> UUID | None:
        text = self.text(name)
        return ident(text, name) if text else None

    def words(self, name: str) -> list[str]:
        return [word.strip() for word in self.text(name).split(",") if word.strip()]
