"""Plans as a pure function of time, and jobs that cannot be written down wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cron_app.domain import plans
from cron_app.domain.jobspec import BadJobError, CatchUp, JobSpec, Last, Scope

MINUTE = timedelta(minutes=1)
NOW = datetime(2026, 3, 1, 12, 34, 56, tzinfo=UTC)


def job(**fields: Any) -> JobSpec:
    values: dict[str, Any] = {"name": "j", "handler": lambda run: {}, "cadence": 5 * MINUTE}
    return JobSpec(**{**values, **fields})


def due(spec: JobSpec, last: Last | None = None, now: datetime = NOW) -> list[str]:
    return [f"{plan:%H:%M}" for plan in plans.due(spec, Scope(), now, last)]


def last(plan: str, status: str = "SUCCESS", attempt: int = 1, retry: datetime | None = None) -> Last:
    hour, minute = plan.split(":")
    return Last(NOW.replace(hour=int(hour), minute=int(minute), second=0), status, attempt, 3, retry)


def test_latest_only_offers_the_newest_bucket() -> None:
    """K-15, K-16: an outage of five periods gives one plan; the delay counts."""
    assert due(job()) == ["12:30"]
    assert due(job(schedule_delay=5 * MINUTE)) == ["12:25"]
    assert due(job(), last("12:05")) == ["12:30"]


def test_every_plan_makes_up_for_an_outage_within_its_window() -> None:
    """K-15, K-16: five periods give five plans in order; older than the window never."""
    every = job(catch_up=CatchUp.EVERY_PLAN, max_plans_per_tick=10, catch_up_window=60 * MINUTE)
    assert due(every, last("12:05")) == ["12:10", "12:15", "12:20", "12:25", "12:30"]
    assert due(every, last("03:00"))[0] == "11:35"
    assert due(job(catch_up=CatchUp.EVERY_PLAN, max_plans_per_tick=2, catch_up_window=60 * MINUTE), last("12:05")) == [
        "12:10",
        "12:15",
    ]
    assert due(job(catch_up=CatchUp.EVERY_PLAN, max_plans_per_tick=2), last("12:05")) == ["12:30"]
    assert due(every, None) == ["12:30"]
    assert due(every, last("12:30")) == []


def test_a_failed_plan_goes_before_the_next() -> None:
    """K-13: nothing passes it by while it has attempts; then it rests."""
    every = job(catch_up=CatchUp.EVERY_PLAN, max_plans_per_tick=10, catch_up_window=60 * MINUTE)
    assert due(every, last("12:20", "FAILED", 1)) == ["12:20"]
    assert due(every, last("12:20", "FAILED", 1, NOW + MINUTE)) == []
    assert due(every, last("12:20", "FAILED", 1, NOW - MINUTE)) == ["12:20"]
    assert due(every, last("12:20", "FAILED", 3)) == ["12:25", "12:30"]


def test_a_job_may_bring_its_own_plans() -> None:
    """K-18: the hook's list, cut to the limit."""
    moments = [NOW - minutes * MINUTE for minutes in (3, 2, 1)]
    own = job(cadence=None, plans_for_scope=lambda scope, now, last: moments, max_plans_per_tick=2)
    assert plans.due(own, Scope("x", "1"), NOW, None) == moments[:2]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"name": ""}, "name"),
        ({"cadence": None}, "cadence"),
        ({"cadence": timedelta(0)}, "cadence"),
        ({"schedule_delay": -MINUTE}, "schedule_delay"),
        ({"catch_up": CatchUp.EVERY_PLAN}, "max_plans_per_tick"),
        ({"run_timeout": timedelta(0)}, "run_timeout"),
        ({"stale_timeout": 5 * MINUTE}, "stale_timeout"),
        ({"heartbeat_interval": timedelta(0)}, "heartbeat_interval"),
        ({"heartbeat_interval": 10 * MINUTE}, "heartbeat_interval"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"retry_backoff": (-MINUTE,)}, "retry_backoff"),
    ],
)
def test_a_job_that_could_only_misbehave_is_refused(fields: dict[str, Any], name: str) -> None:
    """K-11, K-13, K-15: when it is written down, with the field's name."""
    with pytest.raises(BadJobError, match=name):
        job(**fields)


def test_waits_follow_the_list_and_its_end_repeats() -> None:
    """K-13: gaps equal the list."""
    spec = job(retry_backoff=(MINUTE, 5 * MINUTE))
    assert [spec.wait_after(attempt) for attempt in (1, 2, 3, 9)] == [MINUTE, 5 * MINUTE, 5 * MINUTE, 5 * MINUTE]
    assert job().wait_after(1) == timedelta(0)
