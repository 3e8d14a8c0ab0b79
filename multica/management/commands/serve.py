"""`manage.py serve`: one web process, HTTP and sockets on one port."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Any

import uvicorn
from django.core.management.base import BaseCommand, CommandParser

DEFAULT_PORT = 8080
# The largest legal answer carries 32 tasks with their bodies.
SOCKET_MESSAGE_LIMIT = 64 * 1024 * 1024
GRACE = 5


class Command(BaseCommand):
    help = "Run one web process: HTTP and WebSocket on one port. `up` runs the whole stack."
    requires_system_checks = ["__all__"]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default=os.environ.get("MULTICA_HOST", "127.0.0.1"))
        parser.add_argument("--port", type=int, default=int(os.environ.get("MULTICA_PORT") or DEFAULT_PORT))
        parser.add_argument("--fd", type=int, help="an open listening socket to serve instead (used by `up`)")

    def handle(self, *_args: Any, **options: Any) -> None:
        server = uvicorn.Server(configuration(options["host"], options["port"]))
        given = options["fd"]
        server.run(sockets=[socket.socket(fileno=given)] if given is not None else None)
        # A request thread that hangs (a client that reads nothing) must not keep a stopped server alive.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0 if server.started else 1)


def configuration(host: str, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        "multica.asgi:application",
        host=host,
        port=port,
        loop="auto",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_max_size=SOCKET_MESSAGE_LIMIT,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        # Behind a proxy its address must be named (MULTICA_PROXIES); nobody else may claim to be someone.
        proxy_headers=bool(os.environ.get("MULTICA_PROXIES")),
        forwarded_allow_ips=os.environ.get("MULTICA_PROXIES") or None,
    )
