"""The deliveries that this process holds, from the claim's answer to their durable ending."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from daemon_client.config import RuntimeInfo
from daemon_client.protocol import ClaimedTask

Phase = Literal["preparing", "waiting", "running", "finishing"]
# Why a run must stop. `superseded`: the server accepts nothing more from this delivery, so nothing more is sent.
StopReason = Literal["cancelled", "superseded", "shutdown", "idle_watchdog", "timeout"]


class Stopped(Exception):
    """Raised inside a run to leave it: its control says why."""


class RunControl:
    """The one switch that ends a run. The first reason holds, except that `superseded` overrides any other."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.reason: StopReason | None = None
        self.detail = ""

    def request(self, reason: StopReason, detail: str = "") -> None:
        if self.reason is None or reason == "superseded":
            self.reason, self.detail = reason, detail
        self.stop.set()

    def check(self) -> None:
        if self.stop.is_set():
            raise Stopped


@dataclass(eq=False)
class ActiveRun:
    """One delivery being worked on. `runtime` is None when the claim named one that this daemon does not have."""

    task: ClaimedTask
    slot: int
    runtime: RuntimeInfo | None = None
    phase: Phase = "preparing"
    workdir: Path | None = None
    control: RunControl = field(default_factory=RunControl)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class ActiveTasks:
    """Registry of the runs. A delivery is in it before the claim that brought it lets anything else happen."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], ActiveRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[ActiveRun]:
        return iter(list(self._runs.values()))

    def add(self, run: ActiveRun) -> bool:
        """False when this very delivery is held already."""
        if run.task.key in self._runs:
            return False
        self._runs[run.task.key] = run
        return True

    def remove(self, run: ActiveRun) -> None:
        self._runs.pop(run.task.key, None)
        run.done.set()

    def older_deliveries(self, run: ActiveRun) -> list[ActiveRun]:
        return [other for other in self if other is not run and other.task.id == run.task.id]

    def of_runtime(self, runtime_id: str) -> list[ActiveRun]:
        return [run for run in self if run.task.runtime_id == runtime_id]

    def count(self, phase: Phase) -> int:
        return sum(run.phase == phase for run in self)

    def by_token(self, auth_token: str) -> ActiveRun | None:
        """The running task whose agent holds this token; only those may use the machine's checkout route."""
        wanted = [run for run in self if run.phase == "running" and run.task.auth_token.strip() == auth_token]
        return wanted[0] if auth_token and wanted else None
