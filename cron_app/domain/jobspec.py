"""What a periodic job is, validated when it is written down rather than when it misbehaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

GLOBAL: Final = "global"


class CatchUp(StrEnum):
    """What becomes of plans that were missed."""

    LATEST_ONLY = "latest_only"
    EVERY_PLAN = "every_plan"


@dataclass(frozen=True)
class Scope:
    """What one row of plans is about: everything (`global`), or one object of a kind."""

    kind: str = GLOBAL
    id: str = GLOBAL


@dataclass(frozen=True)
class Last:
    """The newest stored execution of a scope, as far as planning needs it."""

    plan_time: datetime
    status: str
    attempt: int
    max_attempts: int
    next_retry_at: datetime | None = None


def only_global() -> tuple[Scope, ...]:
    """The scopes of a job that has just one."""
    return (Scope(),)


Handler = Callable[[Any], Mapping[str, Any]]
Plans = Callable[[Scope, datetime, Last | None], list[datetime]]


class BadJobError(ValueError):
    """A job that could only misbehave. The text names the job and the field."""


@dataclass(frozen=True)
class JobSpec:
    """One job. The handler gets a run (see `services.execute.Run`) and returns a JSON object, `rows_affected` counted.

    `stale_timeout` is the lease: heartbeats renew it every `heartbeat_interval`; past it the row is abandoned.
    `allow_stale_reentry` False means that an abandoned run is never repeated by itself: it rests FAILED for a person.
    """

    name: str
    handler: Handler
    cadence: timedelta | None = None
    schedule_delay: timedelta = timedelta(0)
    catch_up: CatchUp = CatchUp.LATEST_ONLY
    catch_up_window: timedelta = timedelta(0)
    max_plans_per_tick: int = 0
    run_timeout: timedelta = timedelta(minutes=5)
    stale_timeout: timedelta = timedelta(minutes=10)
    heartbeat_interval: timedelta = timedelta(seconds=30)
    allow_stale_reentry: bool = True
    max_attempts: int = 3
    retry_backoff: tuple[timedelta, ...] = ()
    scopes: Callable[[], tuple[Scope, ...]] = field(default=only_global)
    plans_for_scope: Plans | None = None

    def __post_init__(self) -> None:
        zero = timedelta(0)
        rules = (
            (bool(self.name), "name", "must not be empty"),
            (self.plans_for_scope is not None or (self.cadence or zero) > zero, "cadence", "must be above 0"),
            (self.schedule_delay >= zero, "schedule_delay", "must not be negative"),
            (
                self.catch_up is not CatchUp.EVERY_PLAN or self.max_plans_per_tick > 0,
                "max_plans_per_tick",
                "must be above 0 for every_plan",
            ),
            (self.run_timeout > zero, "run_timeout", "must be above 0"),
            (self.stale_timeout > self.run_timeout, "stale_timeout", "must be longer than run_timeout"),
            (zero < self.heartbeat_interval < self.stale_timeout, "heartbeat_interval", "must lie within the lease"),
            (self.max_attempts >= 1, "max_attempts", "must be at least 1"),
            (all(wait >= zero for wait in self.retry_backoff), "retry_backoff", "must not be negative"),
        )
        for holds, name, text in rules:
            if not holds:
                raise BadJobError(f"job {self.name!r}: {name} {text}")

    def wait_after(self, attempt: int) -> timedelta:
        """How long to wait after failed attempt `attempt` (from 1); the last entry repeats, none means at once."""
        if not self.retry_backoff:
            return timedelta(0)
        return self.retry_backoff[min(attempt, len(self.retry_backoff)) - 1]
