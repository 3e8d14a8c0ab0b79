"""What load balancers, supervisors and people ask a web process: does it live, can it work, and if not, why."""

from __future__ import annotations

import logging
import threading

import redis
from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse

log = logging.getLogger(__name__)
ALIVE = b'{"status":"ok"}'


def health(_request: HttpRequest) -> HttpResponse:
    """The process answers. Asks nobody: an orchestrator must not kill it because the database is away."""
    return HttpResponse(ALIVE, content_type="application/json")


def ready(_request: HttpRequest) -> JsonResponse:
    """200 when this process can serve, else 503; `checks` names each dependency with `ok` or the reason in words."""
    checks = {"database": database_state(), "migrations": "not checked", "redis": redis_state()}
    if checks["database"] == "ok":
        checks["migrations"] = migrations_state()
    good = all(state in ("ok", "not configured") for state in checks.values())
    return JsonResponse({"status": "ready" if good else "not ready", "checks": checks}, status=200 if good else 503)


def database_state() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('server_version_num')::int")
            (version,) = cursor.fetchone()
    except Exception as error:  # any driver error is the answer here, not a fault of the probe
        log.warning("database is not reachable: %s", type(error).__name__)
        connection.close()
        return f"unreachable ({type(error).__name__})"
    return "ok" if version >= 150_000 else f"PostgreSQL 15 or newer is needed, the server is {version // 10_000}"


# Set once this process has seen every migration applied: the code does not change under it, and looking is slow.
migrated = threading.Event()


def migrations_state() -> str:
    if migrated.is_set():
        return "ok"
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        first = plan[0][0]
        return f"{len(plan)} not applied (first: {first.app_label}.{first.name}); run manage.py migrate"
    migrated.set()
    return "ok"


def redis_state() -> str:
    """Redis is an accelerator: the server works without one configured, but a configured one that is away is told."""
    if not settings.REDIS_URL:
        return "not configured"
    client = redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=settings.REDIS_TIMEOUT,
        socket_connect_timeout=settings.REDIS_TIMEOUT,
        retry=None,
    )
    try:
        client.ping()
    except redis.RedisError as error:
        return f"unreachable ({type(error).__name__})"
    finally:
        client.close()
    return "ok"
