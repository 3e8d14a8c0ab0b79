"""The daemon's own port, on 127.0.0.1 only: health for people, stop for the command line, checkout for agents."""

from __future__ import annotations

import errno
import logging
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
from aiohttp import web

from daemon_client import protocol
from daemon_client.config import parse_duration
from daemon_client.engine.active import ActiveRun
from daemon_client.engine.context import Context
from daemon_client.errors import AlreadyRunning, ConfigError, DaemonError
from daemon_client.protocol import Json

if TYPE_CHECKING:
    import asyncio

    from daemon_client.engine.registration import Registrar
    from daemon_client.engine.supervisor import Loop

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
RETRY_AFTER = "2"


class Owner(Protocol):
    """The daemon behind the port."""

    ready: asyncio.Event
    loops: dict[str, Loop]
    registrar: Registrar

    def request_stop(self, drain: float | None = None) -> None: ...


class Refused(Exception):
    """A request that is answered with an error object."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.text, self.headers = status, text, dict(headers or {})
        super().__init__(text)


@web.middleware
async def _guard(request: web.Request, handler: Any) -> web.StreamResponse:
    """No web page may talk to this port: browsers send an Origin, and a rebound name shows in Host."""
    name = request.host.rpartition(":")[0] or request.host
    if request.headers.get("Origin") or name not in (HOST, "localhost"):
        return web.json_response({"error": "not for browsers"}, status=403)
    try:
        answer: web.StreamResponse = await handler(request)
    except Refused as refused:
        return web.json_response({"error": refused.text}, status=refused.status, headers=refused.headers)
    return answer


class LocalServer:
    """Serves from before the first contact with the server until after the last task has ended."""

    def __init__(self, ctx: Context, owner: Owner) -> None:
        self._ctx, self._owner = ctx, owner
        self._began = ctx.clock.monotonic()
        self._runner: web.AppRunner | None = None

    async def open(self) -> int:
        """Bind and serve; the port. AlreadyRunning when it is taken: the port is half of the singleton."""
        app = web.Application(middlewares=[_guard], client_max_size=1 << 20)
        app.router.add_get("/health", self._health)
        app.router.add_post("/shutdown", self._shutdown)
        app.router.add_post("/repo/checkout", self._checkout)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, self._ctx.settings.health_port)
        try:
            await site.start()
        except OSError as error:
            await self.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise AlreadyRunning(
                await pid_behind(self._ctx.settings.health_port), self._ctx.settings.health_port
            ) from error
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    # -- health and stop --

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(self.health())

    def health(self) -> Json:
        ctx, settings = self._ctx, self._ctx.settings
        active = ctx.active
        return {
            "status": "running" if self._owner.ready.is_set() else "starting",
            "pid": os.getpid(),
            "os": platform.system().lower(),
            "uptime": f"{ctx.clock.monotonic() - self._began:.0f}s",
            "profile": settings.profile,
            "daemon_id": settings.daemon_id,
            "device_name": settings.device_name,
            "server_url": settings.server_url,
            "cli_version": settings.cli_version,
            "launched_by": settings.launched_by,
            "active_task_count": len(active),
            "running_task_count": active.count("running"),
            "resource_wait_task_count": active.count("waiting"),
            "unreported_task_count": len(ctx.outbox),
            "slots": {"total": ctx.slots.total, "free": ctx.slots.free},
            "agents": sorted({r.provider for w in ctx.index.workspaces.values() for r in w.runtimes.values()}),
            "skipped_agents": self._owner.registrar.skipped(),
            "workspaces": [
                {"id": w.id, "name": w.name, "runtimes": sorted(w.runtimes)} for w in ctx.index.workspaces.values()
            ],
            "loops": {
                loop.name: loop.last_run.isoformat() if loop.last_run else None for loop in self._owner.loops.values()
            },
        }

    async def _shutdown(self, request: web.Request) -> web.Response:
        body = await _object(request)
        drain = body.get("drain")
        try:
            seconds = None if drain is None else parse_duration(str(drain))
        except ConfigError as error:
            raise Refused(400, f"drain: {error}") from error
        self._owner.request_stop(seconds)
        return web.json_response({"status": "stopping", "pid": os.getpid()})

    # -- checkout --

    async def _checkout(self, request: web.Request) -> web.Response:
        """Check a repository out for the agent of a running task. What it may have is decided by its token alone."""
        kind, _, token = request.headers.get(protocol.HEADER_AUTHORIZATION, "").partition(" ")
        run = self._ctx.active.by_token(token.strip()) if kind.lower() == "bearer" else None
        if run is None:
            raise Refused(401, "no running task has this token")
        body = await _object(request)
        url = _own(run, body)
        ref = await self._allowed(run, url)
        workdir = _inside(run, body)
        result = await self._check_out(run, url, str(body.get("ref") or ref), workdir, bool(body.get("retry_busy")))
        return web.json_response({"path": str(result.path), "branch_name": result.branch_name})

    async def _check_out(self, run: ActiveRun, url: str, ref: str, workdir: Path, retry_busy: bool) -> Any:
        from daemon_client.workspace.repo_cache import RepoBusy, RepoError

        try:
            return await self._ctx.workbench.checkout(
                workspace_id=run.task.workspace_id,
                url=url,
                ref=ref,
                workdir=workdir,
                task=run.task,
                agent_name=run.task.agent_name,
            )
        except RepoBusy as error:
            headers = {protocol.HEADER_RETRYABLE: protocol.RETRYABLE_REPO_BUSY, "Retry-After": RETRY_AFTER}
            raise Refused(503, str(error) or "the repository is busy", headers if retry_busy else {}) from error
        except RepoError as error:
            raise Refused(500, str(error)) from error

    async def _allowed(self, run: ActiveRun, url: str) -> str:
        """The default ref of a repository that this task may have. The workspace's list is asked for every time: it
        may have changed since the task was claimed."""
        try:
            answer = await self._ctx.api.repos(run.task.workspace_id)
        except DaemonError as error:
            raise Refused(502, f"the server did not say which repositories are allowed: {error}") from error
        listed = answer.get("repos")
        repos = run.task.repos + [
            repo for repo in (listed if isinstance(listed, list) else []) if isinstance(repo, dict)
        ]
        for repo in repos:
            if repo.get("url") == url:
                return str(repo.get("ref") or "")
        raise Refused(400, f"repository {url} is not configured for this workspace")


def _own(run: ActiveRun, body: Json) -> str:
    for name, mine in (("workspace_id", run.task.workspace_id), ("task_id", run.task.id)):
        if body.get(name) not in (None, "", mine):
            raise Refused(403, f"{name} belongs to another task")
    url = body.get("url")
    if not isinstance(url, str) or not url.strip():
        raise Refused(400, "url is required")
    return url.strip()


def _inside(run: ActiveRun, body: Json) -> Path:
    """The directory to check out into; links resolved, it must lie inside the task's own."""
    own = run.workdir
    wanted = body.get("workdir")
    if own is None or not isinstance(wanted, str) or not os.path.isabs(wanted):
        raise Refused(400, "workdir must be an absolute path")
    path, root = Path(os.path.realpath(wanted)), Path(os.path.realpath(own))
    if path != root and root not in path.parents:
        raise Refused(403, "workdir is outside of the task's directory")
    return path


async def _object(request: web.Request) -> Json:
    if not request.can_read_body:
        return {}
    try:
        body = await request.json()
    except ValueError as error:
        raise Refused(400, "the body is not JSON") from error
    if not isinstance(body, dict):
        raise Refused(400, "the body must be an object")
    return body


async def call(method: str, port: int, path: str, body: Json | None = None, *, limit: float = 5.0) -> Json | None:
    """Ask the daemon on a local port; None when nobody answers there as a daemon would. Never through a proxy."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=limit), trust_env=False) as session,
            session.request(method, f"http://{HOST}:{port}{path}", json=body) as answer,
        ):
            value = await answer.json(content_type=None) if answer.status == 200 else None
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError):
        return None
    return value if isinstance(value, dict) else None


async def pid_behind(port: int) -> int | None:
    health = await call("GET", port, "/health")
    pid = health.get("pid") if health else None
    return pid if isinstance(pid, int) else None
