"""Cron executions in the admin: the audit of background jobs, which nobody writes by hand."""

from __future__ import annotations

import re
from datetime import timedelta
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from cron_app.models import CronExecution

pytestmark = pytest.mark.django_db

LIST = "/admin/cron_app/cronexecution/"
HOSTILE = "<script>alert(1)</script>"


def execution(**fields: object) -> CronExecution:
    now = timezone.now()
    values = {
        "job_name": "rollup_task_usage_hourly",
        "plan_time": now.replace(minute=0, second=0, microsecond=0),
        "status": "SUCCESS",
        "lease_token": uuid4(),
        "runner_id": "host:1",
        "finished_at": now,
        "duration_ms": 1234,
        "rows_affected": 77,
    }
    return CronExecution.objects.create(**{**values, **fields})


def test_plan_attempt_runner_and_result_are_listed(client: Client) -> None:
    """A-04: cron rows are the audit of background jobs: plan, attempt, runner, result."""
    now = timezone.now()
    execution()
    execution(job_name="other", status="FAILED", error_code="boom", error_msg=HOSTILE, scope_kind="ws", scope_id="7")
    lease = {"status": "RUNNING", "finished_at": None, "duration_ms": None, "rows_affected": None}
    execution(job_name="late", **lease, stale_after=now - timedelta(minutes=1))
    execution(job_name="held", **lease, stale_after=now + timedelta(minutes=5))
    body = client.get(LIST).content.decode()
    text = re.sub(r"<[^>]+>", " ", body)
    for piece in ("rollup_task_usage_hourly", "1 of 3", "host:1", "77 rows", "boom", "ws 7", "over", "left", "1 s"):
        assert piece in text
    assert HOSTILE not in body
    for lease_filter in ("stale", "held"):
        found = client.get(LIST, {"lease": lease_filter}).context["cl"].result_list
        assert [row.job_name for row in found] == [{"stale": "late", "held": "held"}[lease_filter]]


def test_nobody_writes_an_execution(client: Client) -> None:
    """Q-06, AD-02: no adding, no changing, no deleting."""
    row = execution()
    for path, data in (
        (f"{LIST}add/", {}),
        (f"{LIST}{row.id}/change/", {"status": "FAILED"}),
        (f"{LIST}{row.id}/delete/", {}),
    ):
        assert client.post(path, {**data, "post": "yes"}).status_code == 403
    client.post(LIST, {"action": "delete_selected", "_selected_action": [str(row.id)], "post": "yes"})
    row.refresh_from_db()
    assert row.status == "SUCCESS"
    assert client.get(f"{LIST}{row.id}/change/").status_code == 200
