"""Runs one claimed plan: handler, heartbeats, the end under the lease's token."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, InterfaceError, connection

from cron_app import transitions
from cron_app.domain.jobspec import JobSpec, Scope
from cron_app.models import CronExecution

log = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """Somebody else owns the plan, or may: the handler must stop writing."""


class RunTimeoutError(Exception):
    """The run has had all its time."""


class CancelledError(Exception):
    """This process is shutting down."""


@dataclass
class Run:
    """One attempt at one plan, as its handler sees it. Long handlers call `check()` between their steps."""

    job: JobSpec
    execution: CronExecution
    stop: threading.Event
    clock: Callable[[], float] = time.monotonic
    lost: threading.Event = field(default_factory=threading.Event)
    started: float = 0.0

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def scope(self) -> Scope:
        """What the plan is about."""
        return Scope(self.execution.scope_kind, self.execution.scope_id)

    def over(self) -> bool:
        """Whether the run's time is up; from then on its lease is renewed no more."""
        return self.clock() - self.started >= self.job.run_timeout.total_seconds()

    def check(self) -> None:
        """Raise LeaseLostError, RunTimeoutError or CancelledError when the handler must not go on."""
        if self.lost.is_set():
            raise LeaseLostError("the lease was lost")
        if self.over():
            raise RunTimeoutError(f"ran longer than {self.job.run_timeout}")
        if self.stop.is_set():
            raise CancelledError("the process is shutting down")

    def renew(self) -> bool:
        """Renew the lease once; False when it is lost or the run's time is up. A lost database decides nothing."""
        if self.over() or self.lost.is_set():
            return False
        if transitions.heartbeat(self.execution, self.job.stale_timeout) is None:
            self.lost.set()
            return False
        return True


_CODES: tuple[tuple[type[Exception], str], ...] = (
    (LeaseLostError, "lease_lost"),
    (RunTimeoutError, "run_timeout"),
    (CancelledError, "canceled"),
    (AssertionError, "handler_panic"),
    (TypeError, "handler_panic"),
    (AttributeError, "handler_panic"),
    (NameError, "handler_panic"),
    (LookupError, "handler_panic"),
)


def code_of(error: Exception) -> str:
    """The error code of what a handler raised: a fault in its code is a panic, anything else an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), "handler_error")


def execute(run: Run) -> CronExecution | None:
    """Call the handler and store how it ended; None when the lease was lost, and the result counts for nothing."""
    stopped = threading.Event()
    beats = threading.Thread(target=_beat, args=(run, stopped), name=f"cron-{run.job.name}")
    beats.start()
    try:
        result = _handle(run)
    finally:
        stopped.set()
        beats.join()
    ended = _store(run, result)
    if ended is None:
        log.warning("cron %s %s: lease lost, result dropped", run.job.name, run.execution.plan_time)
    return ended


def _handle(run: Run) -> Mapping[str, Any] | Exception:
    try:
        return run.job.handler(run)
    except Exception as error:
        log.exception("cron %s %s failed", run.job.name, run.execution.plan_time)
        if isinstance(error, DatabaseError | InterfaceError) and not connection.in_atomic_block:
            connection.close()
        return error


def _store(run: Run, result: Mapping[str, Any] | Exception) -> CronExecution | None:
    if isinstance(result, Exception):
        wait = run.job.wait_after(run.execution.attempt)
        return transitions.fail(run.execution, code_of(result), str(result) or type(result).__name__, wait=wait)
    return transitions.succeed(run.execution, result)


def _beat(run: Run, stopped: threading.Event) -> None:
    try:
        while not stopped.wait(run.job.heartbeat_interval.total_seconds()):
            try:
                if not run.renew():
                    return
            except (DatabaseError, InterfaceError) as error:
                log.warning("cron %s: no heartbeat: %s", run.job.name, str(error).strip())
                connection.close()
    finally:
        connection.close()
