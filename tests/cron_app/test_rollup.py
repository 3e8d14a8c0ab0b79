"""Hourly sums that always equal the raw rows."""

from __future__ import annotations

import threading
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import Sum
from django.utils import timezone

from cron_app.jobs import JOBS, rollup_task_usage_hourly
from cron_app.models import CronExecution
from cron_app.services import by_hand
from cron_app.services.rollup_usage import rollup
from queue_app.models import AgentTask, TaskUsage, TaskUsageHourly
from tests.support.lifecycle import Site
from tests.support.together import together

FIELDS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def report(task: AgentTask, hours_ago: float, **fields: Any) -> TaskUsage:
    moment = timezone.now() - timedelta(hours=hours_ago)
    values = {"provider": "claude", "model": "m", "input_tokens": 10, "output_tokens": 1, "updated_at": moment}
    row = TaskUsage.objects.create(task=task, **{**values, **fields})
    TaskUsage.objects.filter(id=row.id).update(created_at=moment)
    return row


def totals(model: Any) -> dict[str, int]:
    return dict(model.objects.aggregate(**{name: Sum(name) for name in FIELDS}))


def equal() -> bool:
    return totals(TaskUsage) == totals(TaskUsageHourly)


def run_job() -> CronExecution:
    job = rollup_task_usage_hourly.JOB
    last = CronExecution.objects.order_by("-plan_time").first()
    plan = (last.plan_time if last else timezone.now()) + timedelta(minutes=5)
    ended = by_hand.run(job, job.scopes()[0], plan, threading.Event())
    assert ended is not None
    assert ended.status == "SUCCESS", ended.error_msg
    return ended


@pytest.mark.django_db(transaction=True)
def test_totals_equal_the_raw_rows_also_after_late_reports() -> None:
    """K-04: first run, new rows, a report that replaces an old one, one that comes hours late, and a repeat."""
    site = Site()
    tasks = [site.queued(issue=site.more_issue()) for _ in range(4)]
    for number, task in enumerate(tasks):
        report(task, hours_ago=number * 0.7 + 1, cost_usd_ticks=None if number else 5)
        report(task, hours_ago=number * 0.7 + 1, model="other", cache_read_tokens=3)
    assert run_job().rows_affected
    assert equal()
    TaskUsage.objects.filter(task=tasks[0], model="m").update(input_tokens=99, updated_at=timezone.now())
    late = report(tasks[3], hours_ago=9, model="late")
    TaskUsage.objects.filter(id=late.id).update(updated_at=timezone.now())
    assert not equal()
    run_job()
    assert equal()
    before = list(TaskUsageHourly.objects.order_by("id").values_list("input_tokens", flat=True))
    run_job()
    assert equal()
    assert len(before) == TaskUsageHourly.objects.count()


@pytest.mark.django_db(transaction=True)
def test_a_report_whose_transaction_ended_after_the_look_is_not_lost() -> None:
    """K-04: it is stamped with the beginning of its transaction, so the next look begins before the last one."""
    site = Site()
    task = site.queued()
    run_job()
    begun = timezone.now() - timedelta(minutes=3)
    report(task, hours_ago=0)
    TaskUsage.objects.update(created_at=begun, updated_at=begun)
    run_job()
    assert equal()


@pytest.mark.django_db(transaction=True)
def test_hours_are_kept_apart_by_agent_model_and_runtime() -> None:
    """K-04: the sums have the dimensions of the raw rows."""
    one, two = Site(), Site()
    report(one.queued(), 2)
    report(two.queued(), 2)
    report(two.queued(issue=two.more_issue()), 2)
    run_job()
    rows = TaskUsageHourly.objects.order_by("task_count").values_list("workspace_id", "agent_id", "task_count")
    assert list(rows) == [(one.workspace.id, one.agent.id, 1), (two.workspace.id, two.agent.id, 2)]


@pytest.mark.django_db(transaction=True)
def test_two_roll_ups_at_once_do_not_count_twice() -> None:
    """K-06: the second one finds the lock taken, or nothing left to do wrong."""
    site = Site()
    for _ in range(5):
        report(site.queued(issue=site.more_issue()), 3)
    results = together(*[lambda: rollup(None, lambda: None)] * 4)
    assert not [result for result in results if isinstance(result, Exception)]
    assert equal()


@pytest.mark.django_db(transaction=True)
def test_a_busy_lock_is_no_failure() -> None:
    """K-04: success with nothing done, and the next run begins where the last real one ended."""
    site = Site()
    report(site.queued(), 3)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(4246)")
        try:
            (result,) = together(lambda: rollup(None, lambda: None))
        finally:
            cursor.execute("SELECT pg_advisory_unlock(4246)")
    assert result == {"rows_affected": 0, "skipped_reason": "another roll-up is running"}
    run_job()
    assert equal()


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("cron", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db(transaction=True)
def test_the_command_lists_and_runs() -> None:
    """K-19: what there is, what ran last, one plan by hand; a plan that is done is refused."""
    assert "never ran" in command("list")
    assert "SUCCESS" in command("run", JOBS[0].name)
    assert "SUCCESS attempt 1" in command("list")
    with pytest.raises(CommandError, match="running or done elsewhere"):
        command("run", JOBS[0].name)
    with pytest.raises(CommandError, match="no job"):
        command("run", "nonsense")
    with pytest.raises(CommandError, match="not a time with a zone"):
        command("run", JOBS[0].name, "--plan", "noon")
