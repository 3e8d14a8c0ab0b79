"""Ends, comments and sweeps that meet: real connections, a barrier, and one outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from queue_app.domain.states import TERMINAL
from queue_app.models import AgentRuntime, AgentTask, Comment, LateWrite, TaskEvent
from queue_app.services import agents, cancel, complete, enqueue, fail, promote, route_comment, verify_history
from queue_app.services.issue_lock import lock_issue
from queue_app.services.recover_orphans import recover_orphans
from queue_app.services.scope import scope
from queue_app.sweeps import runner
from tests.support import lifecycle
from tests.support.lifecycle import Site
from tests.support.together import together
from tests.support.wait import until

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 15


@pytest.fixture
def site() -> Site:
    return Site(max_concurrent_tasks=50)


def no_errors(results: list[Any]) -> None:
    assert not [result for result in results if isinstance(result, Exception)], results


def ends_of(task: AgentTask) -> list[str]:
    rows = TaskEvent.objects.filter(task_id=task.id, to_status__in=sorted(TERMINAL)).exclude(
        from_status__in=sorted(TERMINAL)
    )
    return list(rows.values_list("verb", flat=True))


def completes(site: Site, task: AgentTask) -> Callable[[], AgentTask]:
    return partial(
        complete.complete, site.caller, task.id, claim_token=task.claim_token, result={"output": "the result"}
    )


def fails(site: Site, task: AgentTask) -> Callable[[], AgentTask]:
    return partial(
        fail.fail, site.caller, task.id, claim_token=task.claim_token, error="no", failure_reason="runtime_recovery"
    )


def cancels(site: Site, task: AgentTask) -> Callable[[], AgentTask]:
    return partial(cancel.cancel_task, site.caller, task.id)


def recovers(site: Site, task: AgentTask) -> Callable[[], Any]:
    return partial(recover_orphans, site.caller, site.runtime.id)


@pytest.mark.parametrize("rival", [cancels, fails, recovers])
def test_one_end_whoever_comes_at_the_same_time(
    site: Site, rival: Callable[[Site, AgentTask], Callable[[], Any]]
) -> None:
    """DUP-08, X-01, Q-08: one terminal event, its effects and only its effects; the loser's result is kept beside."""
    for _ in range(ROUNDS):
        task = site.running(issue=site.more_issue())
        no_errors(together(completes(site, task), rival(site, task), completes(site, task)))
        row = AgentTask.objects.get(id=task.id)
        assert len(ends_of(task)) == 1
        completed = row.status == "completed"
        assert Comment.objects.filter(issue_id=row.issue_id, author_type="agent").count() == int(completed)
        assert AgentTask.objects.filter(retry_of_task_id=row.id).count() == int(row.status == "failed")
        late = LateWrite.objects.filter(task_id=row.id, verb="complete").exists()
        assert late is not completed
        AgentTask.objects.filter(status="queued").delete()


def test_many_reports_of_one_failure_make_one_child_and_no_trace(site: Site) -> None:
    """R-16, L-09: ten at once."""
    task = site.running()
    no_errors(together(*[fails(site, task)] * 10))
    assert AgentTask.objects.filter(retry_of_task_id=task.id).count() == 1
    assert not LateWrite.objects.exists()


def test_two_sweepers_and_a_daemon_end_each_row_once(site: Site) -> None:
    """L-09, D12: ten times two sweepers beside a recovery: the same end state as one alone, one child each."""
    for _ in range(10):
        tasks = [site.running(issue=site.more_issue()) for _ in range(4)]
        waiting = site.queued(issue=site.more_issue(), created_at=timezone.now() - timedelta(hours=30))
        heard = timezone.now() - timedelta(hours=5)
        AgentRuntime.objects.filter(id=site.runtime.id).update(last_seen_at=heard)
        passes: list[Callable[[], Any]] = [runner.run_once, runner.run_once, recovers(site, tasks[0])]
        results = together(*passes)
        no_errors([*results[0], *results[1], results[2]] if isinstance(results[0], list) else results)
        for task in tasks:
            row = AgentTask.objects.get(id=task.id)
            assert row.status == "failed"
            assert len(ends_of(task)) == 1
            assert AgentTask.objects.filter(retry_of_task_id=task.id).count() == 1
        assert AgentTask.objects.get(id=waiting.id).failure_reason == "queued_expired"
        assert Comment.objects.filter(issue_id=waiting.issue_id).count() == 1
        AgentRuntime.objects.update(status="online", last_seen_at=timezone.now())
        AgentTask.objects.filter(status__in=["queued", "deferred"]).delete()
    assert not [finding for batch in verify_history.verify() for finding in batch.findings]


def comment_on(site: Site, text: str) -> Comment:
    comment = Comment.objects.create(
        workspace=site.workspace, issue=site.issue, content=text, author_type="member", author_id=site.owner.id
    )
    comment.refresh_from_db()
    comment.issue = site.issue
    return comment


def speaks(site: Site, text: str) -> Callable[[], Any]:
    def speak() -> Any:
        with transaction.atomic():
            return route_comment.on_comment(comment_on(site, text), site.caller)

    return speak


def planned(site: Site) -> list[str]:
    """Every comment id in every plan of the issue."""
    rows = AgentTask.objects.filter(issue_id=site.issue.id)
    return [str(c) for row in rows for c in (row.trigger_comment_id, *row.coalesced_comment_ids) if c]


def test_comments_at_once_share_one_task(site: Site) -> None:
    """LOST-05, Q-15, DUP-06: five at the same moment, one waiting task, each word in it once."""
    for _ in range(5):
        outcomes = together(*[speaks(site, word) for word in "abcde"])
        no_errors(outcomes)
        assert sorted(outcome.outcome for outcome in outcomes) == ["coalesced"] * 4 + ["queued"]
        assert sorted(planned(site)) == sorted(str(c) for c in Comment.objects.values_list("id", flat=True))
        assert AgentTask.objects.count() == 1
        AgentTask.objects.all().delete()
        Comment.objects.all().delete()


def test_comments_at_once_behind_a_start_share_one_task(site: Site) -> None:
    """LOST-05: the slot is held by a row about to start and no index helps: one deferred task all the same."""
    for _ in range(5):
        lifecycle.dispatch(site.queued())
        no_errors(together(*[speaks(site, word) for word in "abcde"]))
        assert AgentTask.objects.filter(status="deferred").count() == 1
        assert len(planned(site)) == len(set(planned(site))) == 5
        AgentTask.objects.all().delete()
        Comment.objects.all().delete()


def test_assignments_at_once_make_one_task(site: Site) -> None:
    """DUP-06: five at the same moment."""
    outcomes = together(*[partial(enqueue.assign, site.issue, site.agent, caller=site.caller)] * 5)
    no_errors(outcomes)
    assert AgentTask.objects.count() == 1


def test_a_comment_that_meets_the_end_is_heard_once(site: Site) -> None:
    """LOST-05: either the comment finds its own task or the end finds the comment; never both, never neither."""
    for _ in range(ROUNDS):
        task = site.running()
        no_errors(together(completes(site, task), speaks(site, "wait"), fails(site, task)))
        words = [str(c) for c in Comment.objects.filter(author_type="member").values_list("id", flat=True)]
        assert [planned(site).count(word) for word in words] == [1] * len(words)
        AgentTask.objects.all().delete()
        Comment.objects.all().delete()


def test_a_sweep_and_a_change_of_the_issue_do_not_wait_for_each_other(site: Site) -> None:
    """D12: issue before task, on both sides; no deadlock ends a person's request."""

    def reassign(task: AgentTask) -> Any:
        with transaction.atomic():
            site.issue.__class__.objects.select_for_update().get(id=task.issue_id)
            lock_issue(task.issue_id)
            return cancel.cancel_waiting(task.issue, site.agent, caller=site.caller) if task.issue else None

    for _ in range(ROUNDS):
        old = timezone.now() - timedelta(hours=30)
        tasks = [site.queued(issue=site.more_issue(), created_at=old) for _ in range(3)]
        sweep: list[Callable[[], Any]] = [partial(runner.run_once, runner.chosen(["expire_queued"]))]
        results = together(*sweep, *[partial(reassign, task) for task in tasks])
        no_errors([*results[1:], *(results[0] if isinstance(results[0], list) else [results[0]])])
        for task in tasks:
            assert len(ends_of(task)) <= 1


def test_a_promotion_that_meets_an_open_enqueue_leaves_that_runtime_for_later(site: Site) -> None:
    """Scheduler 14.48: the slot goes to the enqueue, nothing is an error, and another runtime's work is promoted."""
    due = timezone.now() - timedelta(minutes=1)
    blocked = site.queued(status="deferred", fire_at=due)
    other = Site()
    free = other.queued(status="deferred", fire_at=due)
    written, ended = threading.Event(), threading.Event()

    def enqueues() -> None:
        with transaction.atomic():
            site.queued()
            written.set()
            until(lambda: ended.is_set() or _waits_for_a_row(), what="the promotion's wait")

    def promotes() -> int:
        written.wait(10)
        try:
            return promote.run_all()
        finally:
            ended.set()

    no_errors(together(enqueues, promotes))
    statuses = dict(AgentTask.objects.values_list("id", "status"))
    assert (statuses[blocked.id], statuses[free.id]) == ("deferred", "queued")


def _waits_for_a_row() -> bool:
    with connection.cursor() as cursor:
        # Inside a transaction the view would show for ever what it showed first.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return bool(cursor.fetchone()[0])


def test_archiving_sees_the_enqueue_that_is_under_way(site: Site) -> None:
    """X-01: it waits for a task that is being made and cancels it, so nothing waits for an agent that is gone."""
    made, ended = threading.Event(), threading.Event()

    def enqueues() -> Any:
        with transaction.atomic():
            outcome = enqueue.assign(site.issue, site.agent, caller=site.caller)
            made.set()
            until(lambda: ended.is_set() or _somebody_waits(), what="the archiving meets the enqueue")
            return outcome

    def archives() -> Any:
        assert made.wait(10)
        try:
            return agents.update(scope(site.caller), site.agent.id, {"archived": True})
        finally:
            ended.set()

    no_errors(together(enqueues, archives))
    assert AgentTask.objects.get().status == "cancelled"


def _somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0])
