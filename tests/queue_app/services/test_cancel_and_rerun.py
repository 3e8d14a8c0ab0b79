"""Stopping work and doing it again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from queue_app import auth
from queue_app.domain.states import OPEN, TERMINAL
from queue_app.errors import InvalidError, NotFoundError, StaleClaimError
from queue_app.models import Agent, AgentTask, AuditEntry, TaskToken
from queue_app.services import cancel, complete, rerun
from queue_app.services.start import start
from tests.queue_app.test_transitions import ROWS
from tests.support import factories, lifecycle
from tests.support.lifecycle import Site, row_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize("status", sorted(OPEN))
def test_a_cancel_is_immediate_in_every_open_state(site: Site, status: Any) -> None:
    """X-01, X-14, Q-23: the row says so at once; the process is a second matter, with its own time."""
    task = ROWS[status](site)
    row = cancel.cancel_task(site.caller, task.id, note="wrong repository")
    assert row.status == AgentTask.objects.get(id=task.id).status == "cancelled"
    held = status in ("dispatched", "waiting_local_directory", "running")
    assert (row.stop_pending_since is not None) == held
    assert row.stopped_at is None
    entry = AuditEntry.objects.get()
    assert (entry.verb, entry.object_id, entry.note, entry.actor_id) == (
        "cancel",
        task.id,
        "wrong repository",
        site.owner.id,
    )
    assert not TaskToken.objects.filter(task_id=task.id, revoked_at__isnull=True).exists()


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_cancelling_what_has_ended_gives_it_back(site: Site, status: Any) -> None:
    """Q-08: unchanged, no error, nothing audited."""
    task = ROWS[status](site)
    before = row_of(task)
    assert cancel.cancel_task(site.caller, task.id).status == status
    assert row_of(task) == before
    assert not AuditEntry.objects.exists()


def test_after_a_cancel_nothing_is_started_and_a_result_is_only_kept(site: Site) -> None:
    """X-06, Q-23: the next start is refused, a late result is not stored as success."""
    waiting = lifecycle.dispatch(site.queued())
    cancel.cancel_task(site.caller, waiting.id)
    with pytest.raises(Exception, match="task_ended"):
        start(site.caller, waiting.id, claim_token=waiting.claim_token)
    running = site.running(issue=site.more_issue())
    cancel.cancel_task(site.caller, running.id)
    row = complete.complete(site.caller, running.id, claim_token=running.claim_token, result={"output": "late"})
    assert (row.status, row.result) == ("cancelled", None)
    assert running.late_writes.get().payload == {"result": {"output": "late"}}


def test_a_stranger_cancels_nothing(site: Site) -> None:
    """D18: an invisible task is not found."""
    task = site.running()
    with pytest.raises(NotFoundError):
        cancel.cancel_task(auth.for_user(factories.make_user()), task.id)
    assert AgentTask.objects.get(id=task.id).status == "running"


def test_an_issue_that_goes_takes_everything_open_with_it(site: Site) -> None:
    """X-08 side: every open row of every agent."""
    other = factories.make_agent(site.runtime)
    tasks = [site.running(), site.queued(), factories.enqueue(other, site.issue)]
    assert {row.id for row in cancel.cancel_for_issue(site.issue, caller=site.caller)} == {task.id for task in tasks}


def test_a_cancel_frees_what_waited_behind_it(site: Site) -> None:
    """Q-24: a follow-up that waited for the slot is queued by the end itself, without a sweep."""
    task = lifecycle.dispatch(site.queued())
    behind = site.queued(status="deferred", fire_at=timezone.now() - timedelta(minutes=1))
    cancel.cancel_task(site.caller, task.id)
    # A process may live after a cancel, so this one waits for its stop first.
    assert AgentTask.objects.get(id=behind.id).status == "deferred"
    ended = site.more_issue()
    task = lifecycle.start(lifecycle.dispatch(site.queued(issue=ended)))
    behind = site.queued(issue=ended, status="deferred", fire_at=timezone.now() - timedelta(minutes=1))
    complete.complete(site.caller, task.id, claim_token=task.claim_token, result={"output": ""})
    assert AgentTask.objects.get(id=behind.id).status == "queued"


# ------------------------------------------------------------------------------------------------------------ rerun


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_a_rerun_is_a_new_row_that_names_the_old_one(site: Site, status: Any) -> None:
    """Q-08, Q-21, R-15: the old row stays as it ended; the new one starts with a fresh conversation."""
    source = ROWS[status](site)
    AgentTask.objects.filter(status="queued").exclude(id=source.id).delete()
    before = row_of(source)
    made = rerun.rerun(site.caller, source.id, note="once more")
    assert row_of(source) == before
    assert (made.status, made.rerun_of_task_id, made.attempt) == ("queued", source.id, 1)
    assert made.force_fresh_session
    assert (made.retry_of_task_id, made.parent_task_id) == (None, None)
    assert (made.originator_user_id, made.trigger_evidence_kind) == (site.owner.id, "rerun")
    assert AuditEntry.objects.get(verb="rerun").detail == {"task_id": str(made.id)}


def test_a_rerun_replaces_what_waits_and_leaves_what_runs(site: Site) -> None:
    """Scheduler 7.5: queued, dispatched and deferred rows of the pair are cancelled; a running one goes on."""
    running = site.running()
    waiting = site.queued()
    deferred = site.queued(status="deferred", fire_at=timezone.now() - timedelta(minutes=1))
    made = rerun.rerun(site.caller, running.id)
    statuses = dict(AgentTask.objects.values_list("id", "status"))
    assert [statuses[task.id] for task in (running, waiting, deferred, made)] == [
        "running",
        "cancelled",
        "cancelled",
        "queued",
    ]


def test_an_issue_is_rerun_by_its_assignee(site: Site) -> None:
    """Q-08: its newest attempt, or the first one ever."""
    first = rerun.rerun(site.caller, site.issue)
    assert (first.rerun_of_task_id, first.trigger_evidence_kind) == (None, "issue_assignment")
    second = rerun.rerun(site.caller, site.issue)
    assert second.rerun_of_task_id == first.id


def test_a_rerun_for_an_agent_that_takes_no_work_is_refused(site: Site) -> None:
    """Q-06: with the reason's code."""
    source = lifecycle.failed(site.running())
    Agent.objects.filter(id=site.agent.id).update(archived_at=timezone.now())
    with pytest.raises(InvalidError) as refusal:
        rerun.rerun(site.caller, source.id)
    assert refusal.value.code == "target_unavailable"
    site.issue.assignee_type = "member"
    with pytest.raises(InvalidError):
        rerun.rerun(site.caller, site.issue)


def test_a_start_drops_the_escalations_that_waited_for_it_not_to(site: Site) -> None:
    """T-05: deferred fallbacks of the task go when it starts."""
    task = lifecycle.dispatch(site.queued())
    other = factories.make_agent(site.runtime)
    values = {"status": "deferred", "fire_at": timezone.now(), "escalation_for_task_id": task.id}
    fallback = factories.enqueue(other, site.issue, **values)
    start(site.caller, task.id, claim_token=task.claim_token)
    assert AgentTask.objects.get(id=fallback.id).status == "cancelled"


def test_an_old_deliverys_start_is_refused(site: Site) -> None:
    """L-10: with the dedicated refusal."""
    task = lifecycle.dispatch(site.queued())
    with pytest.raises(StaleClaimError) as refusal:
        start(site.caller, task.id, claim_token=uuid4())
    assert refusal.value.code == "start_claim_rejected"
