"""Runs of autopilots as tasks: of their own, or on the issue that the run has made."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from queue_app.domain import contexts
from queue_app.errors import InvalidError
from queue_app.models import Agent, AgentTask, Issue
from queue_app.services import claim, enqueue, fail, rerun
from queue_app.services.enqueue import Enqueued
from queue_app.services.enqueue_autopilot import enqueue_autopilot
from tests.support import factories, lifecycle
from tests.support.lifecycle import Site

pytestmark = pytest.mark.django_db

SNAPSHOT = {"title": "Nightly", "description": "look for flakes", "source": "webhook", "trigger_payload": {"ref": [1]}}


@pytest.fixture
def site() -> Site:
    return Site()


def run_of(site: Site, autopilot: UUID | None = None, **fields: Any) -> Enqueued:
    values: dict[str, Any] = {
        "workspace_id": site.workspace.id,
        "agent": site.agent,
        "autopilot_id": autopilot or uuid4(),
        "run_id": uuid4(),
        "context": SNAPSHOT,
        "accountable_user_id": site.owner.id,
        "actor": "server",
    }
    return enqueue_autopilot(**{**values, **fields})


def made_by(outcome: Enqueued) -> AgentTask:
    assert outcome.task is not None, outcome
    return AgentTask.objects.get(id=outcome.task.id)


def claimed(site: Site, most: int = 5) -> list[dict[str, Any]]:
    caller, machine = site.caller, site.runtime
    return claim.claim(
        caller,
        daemon_id=machine.daemon_id,
        runtime_ids=[str(machine.id)],
        max_tasks=most,
        timeout_ms=None,
        door="http",
    )


def test_a_run_of_its_own_freezes_its_snapshot(site: Site) -> None:
    """Q-01, Q-13, Q-16, Q-18: one autopilot row with its run, rule, answerable person and nobody who asked."""
    autopilot, rule, run = uuid4(), uuid4(), uuid4()
    task = made_by(run_of(site, autopilot, run_id=run, rule_version_id=rule))
    assert (task.kind, task.status, task.issue_id, task.chat_session_id) == ("autopilot", "queued", None, None)
    assert (task.autopilot_id, task.autopilot_run_id, task.rule_version_id) == (autopilot, run, rule)
    assert (task.serial_key, task.priority) == (f"autopilot:{autopilot}", 0)
    assert (task.originator_user_id, task.accountable_user_id) == (None, site.owner.id)
    assert (task.originator_source, task.trigger_evidence_kind) == ("rule_owner", "autopilot_run")
    assert task.trigger_evidence_ref_id == run
    assert task.context == SNAPSHOT


@pytest.mark.django_db(transaction=True)
def test_the_answer_has_what_the_prompt_needs(site: Site) -> None:
    """Q-16: the daemon reads title, instructions, source and payload as they were when the run was queued."""
    task = made_by(run_of(site))
    (wire,) = claimed(site)
    assert (wire["autopilot_run_id"], wire["autopilot_id"]) == (str(task.autopilot_run_id), str(task.autopilot_id))
    assert (wire["autopilot_title"], wire["autopilot_description"]) == ("Nightly", "look for flakes")
    assert (wire["autopilot_source"], wire["autopilot_trigger_payload"]) == ("webhook", {"ref": [1]})


@pytest.mark.django_db(transaction=True)
def test_two_runs_of_one_autopilot_never_overlap(site: Site) -> None:
    """DUP-06: they wait for each other; those of another autopilot do not."""
    autopilot = uuid4()
    first = made_by(run_of(site, autopilot))
    run_of(site, autopilot)
    other = made_by(run_of(site))
    assert {row["id"] for row in claimed(site)} == {str(first.id), str(other.id)}
    assert claimed(site) == []


@pytest.mark.parametrize("on_issue", [False, True])
def test_no_run_is_retried(site: Site, on_issue: bool) -> None:
    """R-13, R-14, RETRY-07: an infrastructure failure leaves the next run to the schedule, and the row says so."""
    task = made_by(run_of(site, issue=site.issue if on_issue else None))
    task = lifecycle.start(lifecycle.dispatch(task))
    ended = fail.fail(site.caller, task.id, claim_token=task.claim_token, error="gone", failure_reason="timeout")
    assert not AgentTask.objects.filter(retry_of_task_id=task.id).exists()
    assert "autopilot owns the next run" in (ended.not_retried_because or "")


@pytest.mark.django_db(transaction=True)
def test_a_run_that_made_an_issue_works_on_it(site: Site) -> None:
    """Q-01, Q-16: an issue task with the issue's key and priority, whose context names the run."""
    Issue.objects.filter(id=site.issue.id).update(priority="high")
    site.issue.refresh_from_db()
    autopilot, run = uuid4(), uuid4()
    task = made_by(run_of(site, autopilot, run_id=run, issue=site.issue))
    assert (task.kind, task.issue_id, task.autopilot_run_id) == ("issue", site.issue.id, None)
    assert (task.serial_key, task.priority) == (f"issue:{site.issue.id}", 3)
    assert task.context == {**SNAPSHOT, "autopilot_id": str(autopilot), "autopilot_run_id": str(run)}
    assert contexts.autopilot_run(task.context) == str(run)
    assert (task.accountable_user_id, task.trigger_evidence_ref_id) == (site.owner.id, run)
    (wire,) = claimed(site)
    assert (wire["issue_id"], wire["autopilot_run_id"]) == (str(site.issue.id), "")
    again = run_of(site, autopilot, issue=site.issue)
    assert (again.outcome, again.task and again.task.id) == ("coalesced", task.id)


def test_nobody_to_answer_falls_back_on_the_agents_owner(site: Site) -> None:
    """Q-09: and without an owner nothing is queued."""
    task = made_by(run_of(site, accountable_user_id=None))
    assert (task.accountable_user_id, task.originator_source) == (site.agent.owner_id, "owner_fallback")
    Agent.objects.filter(id=site.agent.id).update(owner=None)
    site.agent.refresh_from_db()
    assert run_of(site, accountable_user_id=None).reason == "attribution_blocked"


def test_what_cannot_run_says_why(site: Site) -> None:
    """BAD-07: a code for an agent that is archived, unbound or of another workspace, and no row."""
    stranger = Site()
    assert run_of(site, agent=stranger.agent).reason == "target_unavailable"
    assert run_of(site, issue=stranger.issue).reason == "target_unavailable"
    Agent.objects.filter(id=site.agent.id).update(runtime=None)
    assert run_of(site).reason == "agent_runtime_required"
    Agent.objects.filter(id=site.agent.id).update(archived_at="2026-01-01T00:00:00Z")
    assert run_of(site).reason == "target_unavailable"
    assert not AgentTask.objects.exists()


@pytest.mark.parametrize(
    ("kind", "context", "key"),
    [
        ("autopilot", {"title": "x"}, "source"),
        ("autopilot", {"source": "cron"}, "source"),
        ("autopilot", {"source": "api", "prompt": "x"}, "prompt"),
        ("issue", {"head_sha": ""}, "head_sha"),
        ("issue", {"autopilot_run_id": "7"}, "autopilot_run_id"),
        ("comment", {"title": "x"}, "title"),
        ("quick_create", {}, "prompt"),
        ("quick_create", {"prompt": " ", "requester_id": str(uuid4())}, "prompt"),
        ("quick_create", {"prompt": "x", "requester_id": str(uuid4()), "due_date": "soon"}, "due_date"),
        ("quick_create", {"prompt": "x", "requester_id": str(uuid4()), "attachment_ids": ["a"]}, "attachment_ids"),
        ("issue", [], "context"),
    ],
)
def test_a_context_of_the_wrong_shape_is_refused(site: Site, kind: str, context: Any, key: str) -> None:
    """Q-16: each kind has a schema of its own, and the refusal names the key before anything is written."""
    row = factories.task_values(site.agent, site.issue, kind=kind, context=context)
    with pytest.raises(InvalidError) as refused:
        enqueue.enqueue_many([factories.task_values(site.agent, site.issue), row], actor="user:test")
    assert refused.value.field == key
    assert not AgentTask.objects.exists()


def test_the_wrong_shape_of_a_run_is_refused(site: Site) -> None:
    """Q-16: at the door of autopilots too, with and without an issue."""
    for issue in (None, site.issue):
        with pytest.raises(InvalidError, match="source must be one of"):
            run_of(site, issue=issue, context={**SNAPSHOT, "source": "moon"})


def test_a_person_may_run_it_again(site: Site) -> None:
    """Q-08: a rerun is a new row of the same run with the person who asked for it."""
    task = made_by(run_of(site))
    task = lifecycle.start(lifecycle.dispatch(task))
    fail.fail(site.caller, task.id, claim_token=task.claim_token, error="gone", failure_reason="timeout")
    again = rerun.rerun(site.caller, task.id)
    assert (again.kind, again.autopilot_run_id, again.context) == ("autopilot", task.autopilot_run_id, SNAPSHOT)
    assert (again.originator_user_id, again.trigger_evidence_kind) == (site.owner.id, "rerun")
