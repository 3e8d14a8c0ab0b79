"""The switch that takes the daemons' socket away, for a proxy that cannot carry it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.conf import settings

from queue_app.ws.daemon import daemon_socket


def answers(path: str = "/api/daemon/ws") -> list[dict[str, Any]]:
    """What an upgrade without a credential is answered."""
    said: list[dict[str, Any]] = []
    scope = {"type": "websocket", "path": path, "query_string": b"", "headers": []}

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        said.append(dict(message))

    asyncio.run(daemon_socket({**scope, "extensions": {"websocket.http.response": {}}}, receive, send))
    return said


def test_a_switched_off_socket_tells_every_daemon_to_use_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """503 and not 404 or 401: a daemon goes on over HTTP and keeps its registration and token."""
    monkeypatch.setitem(settings.MULTICA, "DAEMON_SOCKET", False)
    first, body = answers()
    assert first["status"] == 503
    assert b"switched off" in body["body"]


def test_a_socket_that_is_on_asks_who_is_there() -> None:
    """The same call reaches the door's own question when the switch is on."""
    assert answers()[0]["status"] == 401
