"""Every job there is, one module each."""

from __future__ import annotations

from cron_app.domain.jobspec import JobSpec
from cron_app.jobs import rollup_task_usage_hourly

JOBS: tuple[JobSpec, ...] = (rollup_task_usage_hourly.JOB,)
