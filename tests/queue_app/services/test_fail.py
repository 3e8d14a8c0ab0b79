"""A failure with everything that follows it, in one transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from queue_app import auth, hooks, transitions
from queue_app.errors import ConflictError, NotFoundError, StaleClaimError, TaskNotFoundError
from queue_app.models import AgentTask, Comment, LateWrite, TaskToken
from queue_app.services import complete, fail
from queue_app.transitions import Report
from tests.support import factories, lifecycle
from tests.support.lifecycle import Site, row_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def site() -> Site:
    return Site()


def report(
    site: Site, task: AgentTask, reason: str = "runtime_recovery", error: str = "gone", **more: Any
) -> AgentTask:
    values = {"claim_token": task.claim_token, "error": error, "failure_reason": reason, **more}
    return fail.fail(site.caller, task.id, **values)


def child_of(task: AgentTask) -> AgentTask | None:
    return AgentTask.objects.filter(retry_of_task_id=task.id).first()


def test_a_retryable_failure_has_its_child_in_the_same_breath(site: Site) -> None:
    """R-05, R-15, Q-12, Q-24: the parent keeps its own end, the child carries on, and neither tells the issue."""
    task = site.running(trigger_comment_id=uuid4(), coalesced_comment_ids=[uuid4()], handoff_note="mind the gap")
    row = report(site, task, report=Report(session_id="s-1", work_dir="/w"))
    child = child_of(row)
    assert (row.status, row.failure_reason, row.not_retried_because) == ("failed", "runtime_recovery", None)
    assert child is not None
    assert (child.status, child.attempt, child.parent_task_id) == ("queued", 2, task.id)
    for name in ("issue_id", "agent_id", "runtime_id", "serial_key", "kind", "handoff_note", "trigger_comment_id"):
        assert getattr(child, name) == getattr(task, name)
    assert child.coalesced_comment_ids == task.coalesced_comment_ids
    assert child.originator_user_id == child.accountable_user_id == site.owner.id
    assert (child.session_id, child.work_dir, child.force_fresh_session) == ("s-1", "/w", False)
    assert not Comment.objects.exists()


def test_two_failures_make_exactly_two_rows(site: Site) -> None:
    """R-10, R-01: one retry by default; the last one says why there is no more, and is told on the issue."""
    first = report(site, site.running(), "timeout")
    child = child_of(first)
    assert child is not None
    last = report(site, lifecycle.start(lifecycle.dispatch(child)), "timeout", "still nothing")
    assert AgentTask.objects.count() == 2
    assert last.not_retried_because == "no, because attempt 2 of 2 was the last"
    comment = Comment.objects.get()
    assert (comment.author_type, comment.type, comment.source_task_id) == ("system", "system", last.id)
    assert "still nothing" in comment.content


def test_the_network_ladder_end_to_end(site: Site) -> None:
    """R-08, R-11: at once, then deferred by 5 s, then no more."""
    gaps: list[tuple[str, int]] = []
    task = site.running()
    for _ in range(3):
        row = report(site, task, "agent_error.provider_network")
        child = child_of(row)
        if child is None:
            break
        wait = (child.fire_at - row.completed_at).total_seconds() if child.fire_at and row.completed_at else 0
        gaps.append((child.status, round(wait)))
        if child.status == "deferred":
            (child,) = transitions.promote(runtime_ids=None, actor="sweep:test", now=child.fire_at)
        task = lifecycle.start(lifecycle.dispatch(child))
    assert gaps == [("queued", 0), ("deferred", 5)]
    assert (row.attempt, row.max_attempts) == (3, 3)


@pytest.mark.parametrize(
    ("reason", "error"),
    [("codex_semantic_inactivity", "no progress"), ("timeout", "400 invalid_request_error in the history")],
)
def test_a_poisoned_conversation_is_left_behind_and_its_files_are_not(site: Site, reason: str, error: str) -> None:
    """R-07, R-17, S-09, S-10, S-11: same directory, new session."""
    row = report(site, site.running(), reason, error, report=Report(session_id="s-1", work_dir="/w"))
    child = child_of(row)
    assert child is not None
    assert (child.session_id, child.work_dir, child.force_fresh_session) == (None, "/w", True)


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({}, "agent_error.process_failure", "not retried by itself"),
        ({"max_attempts": 1}, "timeout", "attempt 1 of 1 was the last"),
        ({"issue": None, "kind": "quick_create"}, "timeout", "only work on an issue or a chat"),
        (
            {"issue": None, "kind": "autopilot", "autopilot_run_id": UUID(int=7), "serial_key": None},
            "timeout",
            "autopilot owns the next run",
        ),
        ({}, "agent_error.provider_capacity_or_rate_limit", "does not retry rate limits"),
    ],
)
def test_without_a_retry_the_row_says_why(site: Site, fields: dict[str, Any], reason: str, words: str) -> None:
    """R-09, R-12, R-13, R-14: no child, and one sentence about it on the row."""
    row = report(site, site.running(**fields), reason)
    assert child_of(row) is None
    assert words in (row.not_retried_because or "")
    assert AgentTask.objects.get(id=row.id).not_retried_because == row.not_retried_because


def test_an_agent_that_opts_in_waits_out_a_rate_limit() -> None:
    """D9: then with a growing wait, deferred."""
    site = Site(retry_rate_limits=True)
    row = report(site, site.running(), "agent_error.provider_capacity_or_rate_limit")
    child = child_of(row)
    assert child is not None
    assert child.status == "deferred"
    assert child.fire_at is not None
    assert row.completed_at is not None
    assert 1 <= (child.fire_at - row.completed_at).total_seconds() < 2


def test_a_pending_task_in_the_way_costs_the_retry_and_never_the_failure(site: Site) -> None:
    """R-16: the failure stands, and the row names what was in the way."""
    task = site.running()
    successor = site.queued()
    row = report(site, task, "timeout")
    assert (row.status, child_of(row)) == ("failed", None)
    assert "already pending" in (row.not_retried_because or "")
    assert AgentTask.objects.get(id=successor.id).status == "queued"


def test_an_archived_agent_gets_no_retry(site: Site) -> None:
    """R-16: nor does one that is gone."""
    task = site.running()
    type(site.agent).objects.filter(id=site.agent.id).update(archived_at=task.started_at)
    row = report(site, task, "timeout")
    assert "gone or archived" in (row.not_retried_because or "")


def test_a_repeat_is_harmless_and_leaves_no_trace(site: Site) -> None:
    """R-16, Q-08: the same report again gives the row back, one child, no ledger entry, one comment."""
    task = site.running()
    first = report(site, task, "timeout")
    before = row_of(first)
    for _ in range(3):
        assert report(site, task, "timeout").id == first.id
    assert row_of(first) == before
    assert AgentTask.objects.count() == 2
    assert not LateWrite.objects.exists()


def test_a_result_after_another_end_is_kept_beside_the_row(site: Site) -> None:
    """D10: it changes nothing, is there to be read, and a hundred repeats of it are one entry."""
    task = site.running()
    report(site, task, "timeout")
    before = row_of(task)
    for _ in range(3):
        row = complete.complete(site.caller, task.id, claim_token=task.claim_token, result={"output": "R-42"})
        assert row.status == "failed"
    assert row_of(task) == before
    entry = LateWrite.objects.get()
    assert (entry.verb, entry.code, entry.payload) == ("complete", "task_ended", {"result": {"output": "R-42"}})


def test_another_deliverys_report_is_refused_and_kept(site: Site) -> None:
    """L-11: an old delivery cannot end what a newer one runs."""
    task = site.running()
    before = row_of(task)
    with pytest.raises(StaleClaimError):
        report(site, task, claim_token=uuid4())
    assert row_of(task) == before
    assert LateWrite.objects.get().code == "stale_claim"


def test_a_refused_start_without_a_token_does_not_end_the_live_run(site: Site) -> None:
    """L-11, D2: only a row delivered more than once, and only the words that we sent to the start."""
    task = lifecycle.dispatch(site.queued())
    task = lifecycle.start(lifecycle.dispatch(task, now=timezone.now() + timedelta(seconds=100)))
    assert task.deliveries == 2
    before = row_of(task)
    with pytest.raises(StaleClaimError):
        fail.fail(site.caller, task.id, claim_token=None, error="start failed: 409 start_claim_rejected: …")
    assert row_of(task) == before
    ended = fail.fail(site.caller, task.id, claim_token=None, error="the agent broke")
    assert ended.status == "failed"


def test_once_delivered_the_same_words_end_the_row(site: Site) -> None:
    """D2: with one delivery there is no other run to protect."""
    task = site.running()
    row = fail.fail(site.caller, task.id, claim_token=None, error="start_claim_rejected")
    assert row.status == "failed"


def test_a_row_that_waits_cannot_fail(site: Site) -> None:
    """Q-07: nothing runs, so there is nothing to end."""
    task = site.queued()
    with pytest.raises(ConflictError):
        fail.fail(site.caller, task.id, claim_token=None, error="x")
    assert AgentTask.objects.get(id=task.id).status == "queued"


def test_strangers_and_missing_rows(site: Site) -> None:
    """D18: only a row that does not exist gets the words on which daemons drop work."""
    stranger = auth.for_user(factories.make_user())
    task = site.running()
    with pytest.raises(NotFoundError, match=r"^not found$"):
        fail.fail(stranger, task.id, claim_token=task.claim_token, error="x")
    with pytest.raises(TaskNotFoundError, match=r"^task not found$"):
        fail.fail(site.caller, uuid4(), claim_token=None, error="x")


def test_nul_bytes_never_strand_a_row(site: Site) -> None:
    """D17: what PostgreSQL cannot store is left out, in texts and in results."""
    row = report(site, site.running(), "", "bro\x00ken", report=Report(session_id="s\x00", work_dir="/\ud800w"))
    assert (row.error, row.session_id, row.work_dir) == ("broken", "s", "/?w")
    other = site.running(issue=site.more_issue())
    done = complete.complete(
        site.caller, other.id, claim_token=other.claim_token, result={"output": "a\x00", "\x00k": [1]}
    )
    assert done.result == {"output": "a", "k": [1]}


def test_secrets_of_an_error_do_not_reach_the_issue(site: Site) -> None:
    """D18: the comment is redacted and bounded, and says what can be done."""
    report(site, site.running(), "agent_error.provider_auth_or_access", "key sk-ant-abcdefghijkl refused " + "x" * 9000)
    content = Comment.objects.get().content
    assert "sk-ant" not in content
    assert "Log the agent's CLI in" in content
    assert len(content) < 2400


def test_the_runs_credentials_end_with_it(site: Site) -> None:
    """D18: task tokens are revoked in the transaction of the end."""
    task = site.running()
    assert TaskToken.objects.filter(task_id=task.id, revoked_at__isnull=True).count() == 1
    report(site, task)
    assert not TaskToken.objects.filter(task_id=task.id, revoked_at__isnull=True).exists()


def test_news_after_commit_in_order(
    site: Site, django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q-22, V-08, V-10: the failure first, then its retry; nothing before the commit."""
    heard: list[tuple[str, Any]] = []
    monkeypatch.setattr(hooks, "_listeners", [lambda name, payload: heard.append((name, payload.get("retry_pending")))])
    with django_capture_on_commit_callbacks(execute=True):
        report(site, site.running(), "timeout")
        assert heard == []
    told = [entry for entry in heard if entry[0].startswith("task:")]
    assert told == [("task:failed", True), ("task:queued", None)]


def test_an_unbuildable_delivery_ends_by_its_token(site: Site) -> None:
    """C-31 side: a written rule ends it; another delivery's attempt at it does nothing."""
    task = lifecycle.dispatch(site.queued())
    token = task.claim_token
    assert token is not None
    assert fail.end_unbuildable(task.id, claim_token=uuid4(), reason="invalid_task_identity", error="x") is None
    row = fail.end_unbuildable(task.id, claim_token=token, reason="invalid_task_identity", error="x")
    assert row is not None
    assert (row.status, row.failure_reason) == ("failed", "invalid_task_identity")
