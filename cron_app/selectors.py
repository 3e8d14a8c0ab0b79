"""Reads of the execution table."""

from __future__ import annotations

from datetime import datetime

from django.db import connection

from cron_app.domain.jobspec import Last, Scope
from cron_app.models import CronExecution


def database_now() -> datetime:
    """The database's clock; plans depend on nothing else."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment


def last_of(job_name: str, scope: Scope) -> Last | None:
    """The newest plan of a job and scope, from the unique key's index."""
    row = newest(job_name, scope)
    if row is None:
        return None
    return Last(row.plan_time, row.status, row.attempt, row.max_attempts, row.next_retry_at)


def newest(
    job_name: str, scope: Scope, *, status: str | None = None, having: str | None = None
) -> CronExecution | None:
    """The newest execution of a job and scope, in a status and with a key in its result if those are given."""
    rows = CronExecution.objects.filter(job_name=job_name, scope_kind=scope.kind, scope_id=scope.id)
    rows = rows.filter(result__has_key=having) if having else rows
    return (rows.filter(status=status) if status else rows).order_by("-plan_time").first()
