"""Assignments and comments become tasks, or join the one that waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from queue_app.auth import Caller
from queue_app.domain import queueing
from queue_app.models import Agent, AgentTask, Comment, TaskEvent
from queue_app.services import cancel, enqueue, route_comment
from queue_app.services.enqueue import Enqueued
from tests.support import factories, lifecycle
from tests.support.lifecycle import Site

pytestmark = pytest.mark.django_db


@pytest.fixture
def site() -> Site:
    return Site()


def comment_on(site: Site, text: str = "please", **fields: Any) -> Comment:
    values = {"author_type": "member", "author_id": site.owner.id, "created_at": timezone.now(), **fields}
    return Comment.objects.create(workspace=site.workspace, issue=site.issue, content=text, **values)


def made_by(outcome: Enqueued | None) -> AgentTask:
    assert outcome is not None
    assert outcome.task is not None, outcome
    return AgentTask.objects.get(id=outcome.task.id)


def as_task(site: Site, task: AgentTask) -> Caller:
    return Caller(
        "task", site.owner, f"task:{task.id}", task=task, agent_id=task.agent_id, workspace_id=task.workspace_id
    )


def test_an_assignment_freezes_its_snapshot(site: Site) -> None:
    """Q-01, Q-09, Q-13, Q-14, Q-17, Q-18, Q-20: one row with agent, runtime, issue, people, priority and note."""
    site.issue.priority = "high"
    task = made_by(enqueue.assign(site.issue, site.agent, caller=site.caller, handoff_note="start with the tests"))
    assert (task.status, task.kind, task.agent_id, task.runtime_id) == (
        "queued",
        "issue",
        site.agent.id,
        site.runtime.id,
    )
    assert (task.issue_id, task.chat_session_id, task.autopilot_run_id) == (site.issue.id, None, None)
    assert (task.priority, task.base_priority, task.attempt, task.max_attempts) == (3, 3, 1, 2)
    assert task.serial_key == f"issue:{site.issue.id}"
    assert task.originator_user_id == task.accountable_user_id == site.owner.id
    assert (task.originator_source, task.trigger_evidence_kind) == ("direct_human", "issue_assignment")
    assert task.handoff_note == "start with the tests"
    other = factories.make_runtime(site.workspace)
    Agent.objects.filter(id=site.agent.id).update(runtime=other)
    assert AgentTask.objects.get(id=task.id).runtime_id == site.runtime.id


@pytest.mark.parametrize(
    ("name", "priority"), [("urgent", 4), ("high", 3), ("medium", 2), ("low", 1), ("none", 0), ("?", 0)]
)
def test_priorities(site: Site, name: str, priority: int) -> None:
    """Q-17: the issue's word as the queue's number."""
    site.issue.priority = name
    assert made_by(enqueue.assign(site.issue, site.agent, caller=site.caller)).priority == priority


def test_assigning_again_makes_no_second_task(site: Site) -> None:
    """DUP-06: while one is open the wish is already seen to, whatever it does."""
    first = made_by(enqueue.assign(site.issue, site.agent, caller=site.caller))
    for step in (lambda task: task, lifecycle.dispatch, lifecycle.start):
        step(AgentTask.objects.get(id=first.id))
        again = enqueue.assign(site.issue, site.agent, caller=site.caller)
        assert (again.outcome, again.task and again.task.id) == ("coalesced", first.id)
    assert AgentTask.objects.count() == 1


def test_a_handoff_note_behind_a_run_waits_in_a_task_of_its_own(site: Site) -> None:
    """Q-20: words are never dropped, neither behind a running task nor behind one about to start."""
    task = lifecycle.dispatch(site.queued())
    deferred = made_by(enqueue.assign(site.issue, site.agent, caller=site.caller, handoff_note="one more thing"))
    assert (deferred.status, deferred.handoff_note) == ("deferred", "one more thing")
    lifecycle.start(task)
    queued = made_by(enqueue.assign(site.issue, site.agent, caller=site.caller, handoff_note="and another"))
    assert (queued.status, queued.handoff_note) == ("queued", "and another")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"archived_at": timezone.now()}, "target_unavailable"),
        ({"runtime_id": None}, "agent_runtime_required"),
    ],
)
def test_what_cannot_be_done_is_said_with_a_code(site: Site, change: dict[str, Any], reason: str) -> None:
    """Q-06: blocked is an outcome, not an error, and writes nothing."""
    Agent.objects.filter(id=site.agent.id).update(**change)
    outcome = enqueue.assign(site.issue, site.agent, caller=site.caller)
    assert outcome == Enqueued("blocked", None, reason)
    assert not AgentTask.objects.exists()


def test_an_agent_of_another_workspace_is_unavailable(site: Site) -> None:
    """D18: nothing crosses a workspace."""
    stranger = factories.make_agent(factories.make_runtime(factories.make_workspace()))
    assert enqueue.assign(site.issue, stranger, caller=site.caller).reason == "target_unavailable"


def test_nobody_accountable_no_run(site: Site) -> None:
    """Q-09: without a person or an owner the enqueue is refused."""
    Agent.objects.filter(id=site.agent.id).update(owner=None)
    site.agent.owner_id = None
    assert enqueue.assign(site.issue, site.agent, caller="server").reason == "attribution_blocked"


def test_the_owner_answers_for_what_nobody_asked_for(site: Site) -> None:
    """Q-09: accountable without originator."""
    task = made_by(enqueue.assign(site.issue, site.agent, caller="server"))
    assert (task.originator_user_id, task.accountable_user_id) == (None, site.agent.owner_id)
    assert task.originator_source == "owner_fallback"


def test_a_task_passes_its_authority_on(site: Site) -> None:
    """Q-09, Q-18: what an agent starts carries the person of its own run and names that run."""
    other = factories.make_agent(site.runtime)
    running = site.running()
    issue = site.more_issue(assignee_id=other.id)
    task = made_by(enqueue.assign(issue, other, caller=as_task(site, running)))
    assert (task.originator_user_id, task.originator_source) == (site.owner.id, "delegation")
    assert task.delegated_from_task_id == running.id


# --------------------------------------------------------------------------------------------------------- comments


def test_comments_join_the_task_that_waits(site: Site) -> None:
    """Q-15: one task, the newest comment as trigger, the others coalesced in order."""
    comments = [comment_on(site, text) for text in ("alpha", "bravo", "charlie")]
    outcomes = [route_comment.on_comment(comment, site.caller) for comment in comments]
    assert [outcome and outcome.outcome for outcome in outcomes] == ["queued", "coalesced", "coalesced"]
    task = AgentTask.objects.get()
    assert task.trigger_comment_id == comments[2].id
    assert task.coalesced_comment_ids == [comments[0].id, comments[1].id]
    assert (task.kind, task.trigger_summary) == ("comment", "charlie")


def test_a_merge_moves_the_attribution_with_the_words(site: Site) -> None:
    """Q-09: the newest writer's authority, as one."""
    route_comment.on_comment(comment_on(site), site.caller)
    guest = factories.make_user()
    second = comment_on(site, "me too", author_id=guest.id)
    route_comment.on_comment(second, Caller("user", guest, f"user:{guest.id}"))
    task = AgentTask.objects.get()
    assert task.originator_user_id == task.accountable_user_id == guest.id
    assert task.trigger_evidence_ref_id == second.id


def test_a_comment_joins_an_assignment_and_a_retry_that_waits(site: Site) -> None:
    """LOST-05: a deferred retry takes the words, so that the newer task cannot supersede it and lose its own."""
    parent = lifecycle.failed(site.running())
    retry = site.queued(
        status="deferred", fire_at=timezone.now() + timedelta(seconds=5), retry_of_task_id=parent.id, attempt=2
    )
    comment = comment_on(site)
    outcome = route_comment.on_comment(comment, site.caller)
    assert outcome is not None
    assert (outcome.outcome, outcome.task and outcome.task.id) == ("coalesced", retry.id)
    assert AgentTask.objects.get(id=retry.id).trigger_comment_id == comment.id


def test_a_comment_on_a_running_task_makes_one_successor(site: Site) -> None:
    """DUP-06, Q-23: the run goes on undisturbed, one task waits behind it."""
    running = site.running()
    first, second = comment_on(site), comment_on(site)
    assert made_by(route_comment.on_comment(first, site.caller)).status == "queued"
    made_by(route_comment.on_comment(second, site.caller))
    assert AgentTask.objects.filter(status="queued").count() == 1
    assert AgentTask.objects.get(id=running.id).status == "running"


def test_a_comment_while_a_task_is_about_to_start_waits_behind_it(site: Site) -> None:
    """Q-15: the pending slot is taken, so the words wait deferred; more words join them."""
    lifecycle.dispatch(site.queued())
    task = made_by(route_comment.on_comment(comment_on(site, "alpha"), site.caller))
    assert (task.status, task.kind) == ("deferred", "comment")
    again = made_by(route_comment.on_comment(comment_on(site, "bravo"), site.caller))
    assert again.id == task.id


def test_an_agents_own_comment_never_starts_it(site: Site) -> None:
    """D5: not by its task token, and not through a person's comment that bears its name either."""
    running = site.running()
    own = comment_on(site, f"@{site.agent.name} done", author_type="agent", author_id=site.agent.id)
    outcome = route_comment.on_comment(own, as_task(site, running))
    assert outcome == Enqueued("blocked", None, "self_trigger_suppressed")
    assert AgentTask.objects.count() == 1


def test_another_agent_is_heard_only_when_it_names_the_assignee(site: Site) -> None:
    """Two agents cannot keep each other busy by talking."""
    other = factories.make_agent(site.runtime)
    running = lifecycle.start(
        lifecycle.dispatch(factories.enqueue(other, site.more_issue(), accountable_user_id=site.owner.id))
    )
    caller = as_task(site, running)
    quiet = comment_on(site, "just so you know", author_type="agent", author_id=other.id)
    assert route_comment.on_comment(quiet, caller) is None
    named = comment_on(site, f"@{site.agent.name}, over to you", author_type="agent", author_id=other.id)
    assert made_by(route_comment.on_comment(named, caller)).originator_source == "delegation"


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("@Bot go", True),
        ("hey @bot!", True),
        ("@botany", False),
        ("mail a@bot", False),
        ("@bot-2", False),
        ("bot", False),
    ],
)
def test_mentions(text: str, heard: bool) -> None:
    assert (queueing.mentions(text, "Bot") is not None) is heard


def test_issues_without_an_agent_or_in_the_backlog_start_nothing(site: Site) -> None:
    comment = comment_on(site)
    comment.issue.status = "backlog"
    assert route_comment.on_comment(comment, site.caller) is None
    comment.issue.status, comment.issue.assignee_type = "todo", "member"
    assert route_comment.on_comment(comment, site.caller) is None


def test_reassigning_takes_what_waits_and_leaves_what_runs(site: Site) -> None:
    """Q-23, D5: queued and deferred rows of the old agent go, active ones stay."""
    running = site.running()
    waiting = [
        site.queued(),
        site.queued(status="deferred", fire_at=timezone.now()),
    ]
    cancelled = cancel.cancel_waiting(site.issue, site.agent, caller=site.caller)
    assert {row.id for row in cancelled} == {row.id for row in waiting}
    assert AgentTask.objects.get(id=running.id).status == "running"
    assert TaskEvent.objects.filter(verb="cancel", reason="reassigned").count() == 2


def test_many_at_once(site: Site) -> None:
    """The bulk path: rows and events in batches, occupied slots left out."""
    issues = [site.more_issue() for _ in range(25)]
    values = [factories.task_values(site.agent, issue) for issue in issues]
    made = enqueue.enqueue_many([*values, values[0]], actor="user:bench", batch=10)
    assert len(made) == 25
    assert AgentTask.objects.filter(status="queued").count() == 25
    more = [factories.task_values(site.agent, site.more_issue())]
    assert len(enqueue.enqueue_many(more, actor="user:bench", tell=False)) == 1


def test_evidence_of_the_caller_is_the_actor_of_the_event(site: Site) -> None:
    """Q-09: the event names who enqueued."""
    task = made_by(enqueue.assign(site.issue, site.agent, caller=site.caller))
    assert TaskEvent.objects.get(task_id=task.id).actor == f"user:{site.owner.id}"
