"""The only writer of `sys_cron_executions`. Each function is one guarded statement; None means that nothing changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from cron_app.domain.jobspec import JobSpec, Scope
from cron_app.models import CronExecution
from cron_app.sql import leases

RESULT_LIMIT = 16 * 1024
MESSAGE_LIMIT = 4000


def _one(sql: str, params: Mapping[str, Any]) -> CronExecution | None:
    rows = list(CronExecution.objects.raw(sql, dict(params)))
    return rows[0] if rows else None


def claim(
    job: JobSpec, scope: Scope, plan: datetime, *, runner: str, now: datetime | None = None
) -> CronExecution | None:
    """Take a plan for `stale_timeout`: a new one, one that failed and is due again, or one that was abandoned."""
    params = {
        "id": uuid7(),
        "job": job.name,
        "scope_kind": scope.kind,
        "scope_id": scope.id,
        "plan": plan,
        "max_attempts": job.max_attempts,
        "runner": runner,
        "stale": job.stale_timeout.total_seconds(),
        "reentry": job.allow_stale_reentry,
        "now": now,
    }
    return _one(leases.CLAIM, params) or _one(leases.STEAL, params)


def heartbeat(
    execution: CronExecution, stale_timeout: timedelta, *, now: datetime | None = None
) -> CronExecution | None:
    """Renew a lease; None when it is lost."""
    return _one(leases.HEARTBEAT, {**_mine(execution), "stale": stale_timeout.total_seconds(), "now": now})


def succeed(
    execution: CronExecution, result: Mapping[str, Any], *, now: datetime | None = None
) -> CronExecution | None:
    """Store a result, or its size if it is too large to keep; None when the lease is lost."""
    rows = result.get("rows_affected")
    text = json.dumps(result, default=str)
    if len(text.encode()) > RESULT_LIMIT:
        text = json.dumps({"truncated": True, "bytes": len(text.encode())})
    return _finish(execution, "SUCCESS", now, rows=rows if isinstance(rows, int) else None, result=text)


def fail(
    execution: CronExecution, code: str, message: str, *, wait: timedelta, now: datetime | None = None
) -> CronExecution | None:
    """Store a failure and when the next attempt is due, if any is left; None when the lease is lost."""
    text = message.replace("\x00", "").encode()[:MESSAGE_LIMIT].decode(errors="ignore")
    return _finish(execution, "FAILED", now, code=code, message=text, wait=wait.total_seconds())


def close_abandoned(jobs: Sequence[str], *, now: datetime | None = None) -> list[CronExecution]:
    """End the rows of these jobs whose lease ran out as `stale_timeout`."""
    return list(CronExecution.objects.raw(leases.CLOSE_ABANDONED, {"jobs": list(jobs), "now": now}))


def _mine(execution: CronExecution) -> dict[str, UUID]:
    return {"id": execution.id, "token": execution.lease_token}


def _finish(execution: CronExecution, status: str, now: datetime | None, **values: Any) -> CronExecution | None:
    blank: dict[str, Any] = {"rows": None, "result": "{}", "code": None, "message": None, "wait": 0.0}
    return _one(leases.FINISH, {**blank, **values, **_mine(execution), "status": status, "now": now})
