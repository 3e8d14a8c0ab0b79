"""The one application of a web process: HTTP is Django's WSGI side in a bounded thread pool, sockets are Channels.

Django's own ASGI handler costs two to three times as much per request, because it hops between threads several
times for every one; here a request takes one thread once, and that thread keeps its database connection.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "multica.settings")

# Sets Django up; everything below may import models.
from multica.wsgi import application as wsgi_application

# isort: split
from a2wsgi import WSGIMiddleware
from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import re_path

from multica import env, probes
from queue_app.routing import websocket_urlpatterns

HTTP_THREADS = env.count("MULTICA_HTTP_THREADS", 16)


async def no_such_socket(_scope: Any, receive: Any, send: Any) -> None:
    """Refuses a handshake on an unknown path; without it the router raises and every wrong address is a traceback."""
    await receive()
    await send({"type": "websocket.close", "code": 4404})


class Http:
    """`/health` is answered by the event loop, so it holds while every thread is busy; the rest goes to Django."""

    def __init__(self, threads: int) -> None:
        self.django = WSGIMiddleware(wsgi_application, workers=threads)  # type: ignore[arg-type]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/health":
            await self.django(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(probes.ALIVE)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else probes.ALIVE})


application = ProtocolTypeRouter(
    {
        "http": Http(HTTP_THREADS),
        "websocket": URLRouter([*websocket_urlpatterns, re_path(r"", no_such_socket)]),  # type: ignore[arg-type]
    }
)
