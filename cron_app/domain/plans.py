"""When a job's plans are due: time as a pure function of the database's clock and the newest stored row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cron_app.domain.jobspec import CatchUp, JobSpec, Last, Scope

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FAILED = "FAILED"


def floor(moment: datetime, cadence: timedelta) -> datetime:
    """The start of the cadence's bucket that holds the moment, in UTC."""
    return EPOCH + (moment.astimezone(UTC) - EPOCH) // cadence * cadence


def due(job: JobSpec, scope: Scope, now: datetime, last: Last | None) -> list[datetime]:
    """The plans to try now, oldest first. Some may be running or done elsewhere; the table decides."""
    if job.plans_for_scope is not None:
        plans = job.plans_for_scope(scope, now, last)
        return plans[: job.max_plans_per_tick] if job.max_plans_per_tick else plans
    assert job.cadence is not None
    latest = floor(now - job.schedule_delay, job.cadence)
    if job.catch_up is CatchUp.LATEST_ONLY:
        return [latest]
    return _every(job, job.cadence, latest, now, last)


def _every(job: JobSpec, cadence: timedelta, latest: datetime, now: datetime, last: Last | None) -> list[datetime]:
    if last is None:
        return [latest]
    if last.status == FAILED and last.attempt < last.max_attempts:
        # The failed plan goes first, and nothing passes it by while it still has attempts.
        waiting = last.next_retry_at is not None and last.next_retry_at > now
        return [] if waiting else [last.plan_time]
    plan = last.plan_time + cadence
    if job.catch_up_window > timedelta(0):
        plan = max(plan, floor(now - job.catch_up_window + cadence - timedelta(microseconds=1), cadence))
    else:
        plan = max(plan, latest)
    plans: list[datetime] = []
    while plan <= latest and len(plans) < job.max_plans_per_tick:
        plans.append(plan)
        plan += cadence
    return plans
