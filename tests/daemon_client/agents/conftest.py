"""Runs of agents, real and scripted, with everything they emit and every process that they leave."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from daemon_client.agents import base
from daemon_client.agents.registry import adapter_for
from tests.support.agent_clis import claude as claude
from tests.support.agent_clis import codex as codex
from tests.support.agent_clis import opencode as opencode

MARK = "MULTICA_TEST_MARK"


def marked(mark: str) -> list[int]:
    """Every living process that carries the mark of a run in its environment or command line."""
    found = []
    for process in psutil.process_iter():
        try:
            carries = process.environ().get(MARK) == mark or mark in process.cmdline()
            if carries and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


@dataclass
class Runner:
    """One directory and environment; each `run` is one run of one agent in it."""

    cwd: Path
    env: dict[str, str]
    mark: str
    events: list[base.AgentEvent] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    on_event: Callable[[base.AgentEvent], None] = lambda event: None

    def spec(self, provider: str, executable: list[str], prompt: str = "go", **options: object) -> base.RunSpec:
        spec = base.RunSpec(provider, executable, self.cwd, self.env, prompt, stop_grace=1.0)
        return replace(spec, **options)  # type: ignore[arg-type]

    async def run(self, spec: base.RunSpec) -> base.RunResult:
        async with asyncio.timeout(90):
            return await adapter_for(spec.provider).run(spec, self._emit, self.stop)

    def _emit(self, event: base.AgentEvent) -> None:
        self.events.append(event)
        self.on_event(event)

    def of(self, kind: type[base.AgentEvent]) -> list[base.AgentEvent]:
        return [event for event in self.events if isinstance(event, kind)]

    def survivors(self) -> list[int]:
        return marked(self.mark)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    """A place to run agents in. Whatever a test does, nothing that was started there is alive when it ends."""
    mark, cwd, home = f"run-{uuid4().hex}", tmp_path / "cwd", tmp_path / "home"
    cwd.mkdir()
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(tmp_path), MARK: mark, "IS_SANDBOX": "1"}
    yield Runner(cwd, env, mark)
    for pid in marked(mark):
        psutil.Process(pid).kill()


Script = Callable[..., list[str]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A program of this test's own, as an argv prefix: `script("import sys\\n…")`."""

    def write(source: str, name: str = "agent") -> list[str]:
        path = tmp_path / f"{name}.py"
        path.write_text(source, "utf-8")
        return [sys.executable, str(path)]

    return write


def api_env(env: Mapping[str, str], url: str, key: str, home: Path) -> dict[str, str]:
    """The environment that leads Claude Code to a model API on loopback, with a home of its own."""
    return {
        **env,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "CLAUDE_CONFIG_DIR": str(home),
    }
