"""What every daemon route does before and after its service: who calls, how large, which shape, which answer.

No CSRF (there is no cookie to ride on), no redirects, JSON whatever happens. A 4xx tells a daemon to throw its report
away and a 5xx to repeat it, so a 5xx is only ever for what a repeat can cure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec
from django.db import DataError, InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse

from daemon_client import protocol
from queue_app import auth
from queue_app.auth import Caller
from queue_app.error_map import answer_to
from queue_app.errors import ForbiddenError, InvalidError, QueueError
from queue_app.wire.daemon import Empty, ident_of
from queue_app.wire.decode import decode, decode_report

log = logging.getLogger(__name__)
S = TypeVar("S", bound=msgspec.Struct)

SMALL = 1024 * 1024
LARGE = 16 * 1024 * 1024
REPORT = 64 * 1024 * 1024
"""Bytes of a body: control calls, transcripts, and endings, whose refusal would throw a run's work away."""


@dataclass(frozen=True)
class Call(Generic[S]):
    """One request to one route: who, which ids stand in the path, what was said."""

    request: HttpRequest
    caller: Caller
    body: S
    ids: dict[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def id(self, name: str) -> UUID | None:
        """An id of the path; None when it cannot be one of ours."""
        return ident_of(self.ids[name])

    @property
    def capabilities(self) -> list[str]:
        """What the daemon says it can do, from its header."""
        given = self.request.headers.get(protocol.HEADER_CLIENT_CAPABILITIES, "")
        return [word.strip()[:64] for word in given.split(",")[:64] if word.strip()]


Handler = Callable[[Call[S]], Any]
View = Callable[..., HttpResponse]


class TooLargeError(QueueError):
    """The body is larger than the route takes."""

    code = "too_large"


def get(handler: Handler[Empty]) -> View:
    """A route that only reads."""
    return _view(handler, "GET", lambda request: (Empty(), []))


def post(shape: type[S], *, limit: int = SMALL, report: bool = False) -> Callable[[Handler[S]], View]:
    """A route that takes `shape`. `report` drops fields that cannot be read instead of refusing the whole."""

    def read(request: HttpRequest) -> tuple[S, list[str]]:
        body = _body(request, limit)
        return decode_report(body, shape) if report else (decode(body, shape), [])

    return lambda handler: _view(handler, "POST", read)


def answer(status: int, body: Any, **headers: str) -> HttpResponse:
    """A JSON answer. Ids become strings, instants RFC 3339 with their offset."""
    response = HttpResponse(msgspec.json.encode(body), status=status, content_type="application/json", headers=headers)
    # A refusal is an everyday answer here, and a failure is logged where it happens: Django need not log them again.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _view(handler: Handler[S], method: str, read: Callable[[HttpRequest], tuple[S, list[str]]]) -> View:
    @wraps(handler)
    def view(request: HttpRequest, **ids: str) -> HttpResponse:
        try:
            if request.method != method:
                return answer(405, {"error": f"only {method} is allowed", "code": "method_not_allowed"}, Allow=method)
            caller = _caller(request)
            body, dropped = read(request)
            said = handler(Call(request, caller, body, ids, tuple(dropped)))
            return said if isinstance(said, HttpResponse) else answer(200, said)
        except QueueError as error:
            return _refused(error)
        except (OperationalError, InterfaceError) as error:
            log.warning("%s %s: the database is not available: %s", method, request.path, _kind(error))
            return answer(503, {"error": "temporarily unavailable", "code": "unavailable"}, **{"Retry-After": "1"})
        except DataError as error:
            log.warning("%s %s: a value cannot be stored: %s", method, request.path, _kind(error))
            return answer(400, {"error": "body: a value cannot be stored", "code": "invalid", "field": "body"})
        except Exception:
            log.exception("%s %s failed", method, request.path)
            return answer(500, {"error": "internal error", "code": "internal"})

    view.csrf_exempt = True  # type: ignore[attr-defined]
    return view


def _kind(error: Exception) -> str:
    # The text of a database error quotes values, which may be anybody's secrets.
    return type(error.__cause__ or error).__name__


def _caller(request: HttpRequest) -> Caller:
    caller = auth.authenticate(request.META.get("HTTP_AUTHORIZATION"))
    if caller.kind != "user":
        raise ForbiddenError("a task token may not use the daemon routes")
    return caller


def _body(request: HttpRequest, limit: int) -> bytes:
    given = request.META.get("CONTENT_LENGTH") or "0"
    if not given.isdigit():
        raise InvalidError("Content-Length: must be a number", field="Content-Length")
    if not int(given) and "HTTP_TRANSFER_ENCODING" in request.META:
        # WSGI reads by length: without one a body would count as empty, and a result would be lost without a word.
        raise InvalidError("Content-Length: is required", field="Content-Length")
    if int(given) > limit:
        raise TooLargeError(f"body: at most {limit} bytes")
    return request.body


def _refused(error: QueueError) -> HttpResponse:
    if isinstance(error, TooLargeError):
        return answer(413, {"error": str(error), "code": error.code, "field": "body"})
    status, body = answer_to(error)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status, {})
    return answer(status, body, **headers)
