"""`/health` tells life, `/ready` tells what is missing; both from the point of view of who reads them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from django.test import Client

from multica import asgi, probes
from tests.support.stacks import ROOT, environment

PROGRAM = """
import django, sys
django.setup()
from django.test import RequestFactory
from multica import probes
answer = probes.ready(RequestFactory().get("/ready"))
sys.stdout.write(f"{answer.status_code} {answer.content.decode()}")
"""


def ready_with(**env: str) -> tuple[int, dict[str, str]]:
    """`/ready` of a process with these addresses."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(
            DJANGO_SETTINGS_MODULE="multica.settings", MULTICA_STATE_DIR=os.environ["MULTICA_STATE_DIR"], **env
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    status, _, body = done.stdout.partition(" ")
    return int(status), json.loads(body)["checks"]


def test_health_needs_no_database(client: Client) -> None:
    """Without a database fixture any query would fail this test."""
    assert client.get("/health").json() == {"status": "ok"}


def test_ready_names_a_missing_database() -> None:
    status, checks = ready_with(
        DATABASE_URL="postgresql://app@/multica?host=/nonexistent", REDIS_URL=os.environ["REDIS_URL"]
    )
    assert status == 503
    assert checks == {"database": "unreachable (OperationalError)", "migrations": "not checked", "redis": "ok"}


def test_ready_names_missing_migrations_and_redis() -> None:
    empty = os.environ["DATABASE_URL"].replace("/multica?", "/postgres?")
    status, checks = ready_with(DATABASE_URL=empty, REDIS_URL="unix:///nonexistent/valkey.sock")
    assert status == 503
    assert checks["database"] == "ok"
    assert "not applied (first:" in checks["migrations"]
    assert checks["redis"] == "unreachable (ConnectionError)"


def test_redis_that_is_not_configured_is_no_fault() -> None:
    _, checks = ready_with(DATABASE_URL=os.environ["DATABASE_URL"])
    assert checks["redis"] == "not configured"


@pytest.mark.django_db
def test_ready_when_all_is_there(client: Client, redis_url: str) -> None:
    probes.migrated.clear()
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready"), answer.json()


async def call(application: Any, scope: dict[str, Any]) -> list[dict[str, Any]]:
    """What an ASGI application sends for one request without a body."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"} if scope["type"] == "websocket" else {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await asyncio.wait_for(application(scope, receive, send), 10)
    return sent


def http_scope(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }


async def test_health_answers_while_every_thread_is_busy() -> None:
    application = asgi.Http(threads=1)
    release = threading.Event()
    application.django.executor.submit(release.wait)
    try:
        assert (await call(application, http_scope("/health")))[1]["body"] == probes.ALIVE
    finally:
        release.set()
        application.django.executor.shutdown()


async def test_http_goes_through_django() -> None:
    sent = await call(asgi.Http(threads=1), http_scope("/no/such/page"))
    assert sent[0]["status"] == 404


async def test_unknown_socket_is_refused_without_a_traceback() -> None:
    scope = {"type": "websocket", "path": "/no/such/socket", "headers": [], "subprotocols": [], "query_string": b""}
    assert await call(asgi.application, scope) == [{"type": "websocket.close", "code": 4404}]
