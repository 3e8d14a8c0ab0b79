"""Socket routes. Both are plain ASGI applications over the channel layer, so no frame passes a shared thread."""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, re_path

from queue_app.ws.daemon import daemon_socket
from queue_app.ws.live import live_socket


def _route(pattern: str, application: Any) -> URLPattern:
    route: URLPattern = re_path(pattern, application)
    return route


websocket_urlpatterns: list[URLPattern] = [
    _route(r"^api/daemon/ws$", daemon_socket),
    _route(r"^ws$", live_socket),
]
