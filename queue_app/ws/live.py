"""The browsers' socket: the events of one workspace as they happen. Whoever misses some reads the tables again."""

from __future__ import annotations

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from queue_app import auth, events
from queue_app.auth import Caller
from queue_app.errors import AuthError, ForbiddenError
from queue_app.services import access
from queue_app.wire.daemon import ident_of
from queue_app.wire.frames import frame
from queue_app.ws.connection import TOO_BIG, Connection, Receive, Scope, Send, header, refuse
from queue_app.ws.pool import POOL

READ_LIMIT = 4096
MOST_WAITING = 1000
LAGGING = "live:lagging"
"""Bytes of a frame, events that may wait for a slow browser, and what it is told instead of more of them."""


async def live_socket(scope: Scope, receive: Receive, send: Send) -> None:
    """`/ws?workspace_id=…`: a bearer token, or a session from one of our own pages."""
    await receive()
    try:
        workspace_id = await POOL.call(lambda: _admit(scope))
    except Exception as error:
        await refuse(scope, send, error)
        return
    await _LiveConnection(workspace_id, receive, send).run()


def _admit(scope: Scope) -> UUID:
    credential = header(scope, "Authorization")
    caller = auth.authenticate(credential) if credential else _of_session(scope)
    given = parse_qs(scope["query_string"].decode("latin-1")).get("workspace_id", [""])
    return access.workspace_of(caller, ident_of(given[0])).pk


def _of_session(scope: Scope) -> Caller:
    # A cookie rides along with any page's request, so the page must be ours; a token is only ever sent on purpose.
    if not _own_origin(header(scope, "Origin"), header(scope, "Host")):
        raise ForbiddenError("this origin may not connect")
    request = HttpRequest()
    key = _session_key(header(scope, "Cookie"))
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    user = get_user(request)
    if not user.is_authenticated:
        raise AuthError("missing authorization header")
    return auth.for_user(user)


def _own_origin(origin: str, host: str) -> bool:
    netloc = urlsplit(origin).netloc.lower()
    return bool(netloc) and (netloc == host.lower() or origin.lower() in settings.CSRF_TRUSTED_ORIGINS)


def _session_key(cookies: str) -> str | None:
    try:
        morsel = SimpleCookie(cookies).get(settings.SESSION_COOKIE_NAME)
    except CookieError:
        return None
    return morsel.value if morsel else None


class _LiveConnection(Connection):
    """One browser. It has nothing to say that the server acts on."""

    def __init__(self, workspace_id: UUID, receive: Receive, send: Send) -> None:
        super().__init__(receive, send, [events.workspace_group(workspace_id)])

    def heard(self, data: bytes) -> None:
        """Ignored, but not without limit."""
        if len(data) > READ_LIMIT:
            self.outbox.close(TOO_BIG)

    def told(self, message: Mapping[str, Any]) -> None:
        """An event of the workspace."""
        said = message.get("frame")
        if message.get("type") != "live.event" or not isinstance(said, dict):
            return
        if len(self.outbox) >= MOST_WAITING:
            self.outbox.hint(LAGGING, frame(LAGGING, {}))
            return
        self.outbox.answer(frame(str(said.get("type")), said.get("payload") or {}))
