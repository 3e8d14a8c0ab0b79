"""A daemon against a fake server, with scripted agents in place of CLIs: everything between them is real."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from daemon_client.agents.base import Emit, RunResult, RunSpec
from daemon_client.agents.registry import Detected
from daemon_client.clock import Clock, SystemClock
from daemon_client.config import DaemonSettings
from daemon_client.engine.supervisor import Daemon
from daemon_client.protocol import ClaimedTask
from tests.support.fake_server import TOKEN, FakeServer, FakeTask
from tests.support.wait import until_async

Script = Callable[[RunSpec, Emit, asyncio.Event], Awaitable[RunResult]]
SCALE = 0.02


async def done(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
    return RunResult("completed", output="done")


async def until_stopped(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
    await stop.wait()
    return RunResult("cancelled", failure_reason="cancelled")


@dataclass(frozen=True)
class Prepared:
    """The fields of a preparation that the engine reads."""

    root: Path
    workdir: Path
    tmpdir: Path
    config_root: Path
    env: dict[str, str]
    prompt: str
    brief_path: Path | None
    resume_session_id: str | None


@dataclass(frozen=True)
class Finished:
    branch_name: str = ""
    durable_work_dir: str = ""


@dataclass
class Bench:
    """The machine, scripted: one directory a task, one script for every agent. Records what was asked of it."""

    root: Path
    providers: tuple[str, ...] = ("claude",)
    script: Script = done
    launched: list[str] = field(default_factory=list)
    specs: list[RunSpec] = field(default_factory=list)
    finished: list[tuple[str, str]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    on_prepare: Callable[[ClaimedTask], Awaitable[None]] | None = None
    make_directory: bool = True
    checkouts: list[dict[str, Any]] = field(default_factory=list)
    name: str = "scripted"

    def adapter_for(self, provider: str) -> Bench:
        if provider not in ("claude", "plain"):
            raise KeyError(provider)
        return self

    async def run(self, spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        self.specs.append(spec)
        self.launched.append(spec.env["MULTICA_TASK_ID"])
        self.events.append("launch")
        return await self.script(spec, emit, stop)

    async def detect(self, settings: DaemonSettings) -> list[Detected]:
        return [Detected(provider, f"/opt/{provider}", "9.9.9") for provider in self.providers]

    async def detect_profile(self, command: str, settings: DaemonSettings) -> Detected:
        return Detected("", f"/opt/{command}" if command != "missing" else "")

    async def prepare(self, task: ClaimedTask, **options: Any) -> Prepared:
        self.events.append("prepare")
        if self.on_prepare:
            await self.on_prepare(task)
        root = self.root / task.id
        workdir = root / "workdir"
        if self.make_directory:
            workdir.mkdir(parents=True, exist_ok=True)
        env = {"MULTICA_TASK_ID": task.id, "MULTICA_TOKEN": task.auth_token}
        return Prepared(root, workdir, root / "tmp", root / "config", env, "do it", None, None)

    async def finish(self, prepared: Prepared, task: ClaimedTask, *, outcome: str) -> Finished:
        self.events.append(f"finish {outcome}")
        self.finished.append((task.id, outcome))
        return Finished("", "")

    async def kill_survivors(self, workspaces_root: Path) -> None:
        self.events.append("kill survivors")

    async def checkout(self, **arguments: Any) -> Any:
        self.checkouts.append(arguments)

        @dataclass
        class Checkout:
            path: Path
            branch_name: str

        return Checkout(arguments["workdir"] / "repo", "agent/builder/1")

    async def ensure_repo(self, workspace_id: str, url: str) -> None:
        self.events.append(f"ensure {url}")


class Rig:
    """One fake server, one bench, and any number of daemons one after another."""

    def __init__(self, server: FakeServer, folder: Path) -> None:
        self.server, self.bench, self.folder = server, Bench(folder / "work"), folder
        self.lives: dict[int, asyncio.Task[None]] = {}
        self.settings = DaemonSettings(
            server_url=server.url,
            token=TOKEN,
            daemon_id="00000000-0000-7000-8000-000000000001",
            home=folder / "home",
            workspaces_root=folder / "work",
            health_port=0,
            time_scale=SCALE,
        )

    @contextlib.asynccontextmanager
    async def daemon(self, *, clock: Clock | None = None, ready: bool = True, **changes: Any) -> AsyncIterator[Daemon]:
        """A running daemon; it is stopped at the end, and an error of its own is raised."""
        settings = replace(self.settings, **changes)
        daemon = Daemon(settings, clock=clock or SystemClock(settings.time_scale), workbench=lambda _: self.bench)
        life = self.lives[id(daemon)] = asyncio.create_task(daemon.run())
        try:
            if ready:
                waits = {asyncio.create_task(daemon.ready.wait()), life}
                await asyncio.wait(waits, timeout=10, return_when=asyncio.FIRST_COMPLETED)
                if life.done():
                    life.result()
                assert daemon.ready.is_set()
            yield daemon
        finally:
            daemon.request_stop(0)
            if not life.cancelled():
                async with asyncio.timeout(20):
                    await life

    async def kill(self, daemon: Daemon) -> None:
        """What a kill -9 leaves: nothing of the process, everything on disk."""
        life = self.lives[id(daemon)]
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    async def ended(self, task: FakeTask, status: str = "") -> FakeTask:
        await until_async(lambda: task.ended, 20, what="the task to end")
        assert not status or task.status == status, (task.status, task.result)
        return task

    async def seen(self, verb: str, count: int = 1) -> None:
        await until_async(lambda: len(self.server.calls(verb)) >= count, 20, what=f"{count} calls of {verb}")


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as fake:
        yield fake


@pytest.fixture
def rig(server: FakeServer, tmp_path: Path) -> Rig:
    return Rig(server, tmp_path)
