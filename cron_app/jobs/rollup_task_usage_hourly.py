"""Hourly sums of token usage, kept equal to the raw rows also when reports come late."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from cron_app import selectors
from cron_app.domain.jobspec import CatchUp, JobSpec
from cron_app.models import CronExecution
from cron_app.services.execute import Run
from cron_app.services.rollup_usage import rollup

NAME = "rollup_task_usage_hourly"


def run(attempt: Run) -> dict[str, Any]:
    """Go on from where the newest successful run ended."""
    newest = selectors.newest(NAME, attempt.scope, status=CronExecution.Status.SUCCESS, having="through")
    since = datetime.fromisoformat(newest.result["through"]) if newest else None
    return rollup(since, attempt.check)


JOB = JobSpec(
    name=NAME,
    handler=run,
    cadence=timedelta(minutes=5),
    schedule_delay=timedelta(minutes=5),
    catch_up=CatchUp.LATEST_ONLY,
    catch_up_window=timedelta(hours=24),
    run_timeout=timedelta(minutes=25),
    stale_timeout=timedelta(minutes=30),
    heartbeat_interval=timedelta(seconds=30),
    retry_backoff=(timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=15)),
)
