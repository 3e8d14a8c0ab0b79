"""Whom a comment starts, what is escalated, and what becomes of words that are changed or deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from queue_app.auth import Caller
from queue_app.conf import conf
from queue_app.models import Agent, AgentTask, Comment, Issue
from queue_app.services import comments, enqueue, promote, route_comment, start
from queue_app.services.complete import complete
from queue_app.services.scope import scope
from tests.support import factories, lifecycle
from tests.support.lifecycle import Site

pytestmark = pytest.mark.django_db


@pytest.fixture
def site() -> Site:
    return Site(name="Bot")


@pytest.fixture
def other(site: Site) -> Agent:
    return factories.make_agent(site.runtime, name="Ann")


def say(site: Site, text: str, parent: Comment | None = None) -> comments.Written:
    where = scope(site.caller)
    return comments.add(where, site.issue.id, content=text, parent_id=parent.id if parent else None)


def by_agent(site: Site, agent: Agent, text: str, **fields: Any) -> Comment:
    values = {"author_type": "agent", "author_id": agent.id, **fields}
    return Comment.objects.create(workspace=site.workspace, issue=site.issue, content=text, **values)


def outcomes(written: comments.Written) -> list[tuple[str, str, str]]:
    return [(one.target.agent.name, one.target.why, one.run.outcome) for one in written.runs]


def open_rows(agent: Agent) -> list[AgentTask]:
    rows = AgentTask.objects.filter(agent=agent).exclude(status__in=["cancelled", "completed", "failed"])
    return list(rows.order_by("created_at", "id"))


def test_every_agent_that_is_named_gets_it_and_nobody_else(site: Site, other: Agent) -> None:
    """Q-01, Q-13: also one that is not the assignee; the assignee is left alone when others are named."""
    assert outcomes(say(site, "please look, @ann")) == [("Ann", "mention", "queued")]
    assert open_rows(site.agent) == []
    assert outcomes(say(site, "@Bot and @Ann")) == [("Bot", "mention", "queued"), ("Ann", "mention", "coalesced")]
    assert outcomes(say(site, "anybody?")) == [("Bot", "assignee", "coalesced")]


def test_the_longer_of_two_names_is_meant(site: Site, other: Agent) -> None:
    """`@Ann Lee` does not start Ann beside her."""
    factories.make_agent(site.runtime, name="Ann Lee")
    assert outcomes(say(site, "@Ann Lee, please")) == [("Ann Lee", "mention", "queued")]


def test_one_comment_cannot_start_a_crowd(site: Site) -> None:
    """A text that names everybody starts a bounded number of agents."""
    names = [factories.make_agent(site.runtime, name=f"a{number}").name for number in range(12)]
    assert len(say(site, " ".join(f"@{name}" for name in names)).runs) == route_comment.MOST_TARGETS


def test_archived_and_foreign_agents_are_not_named(site: Site, other: Agent) -> None:
    """D18: a name means an agent of this workspace that is there; otherwise the assignee is asked."""
    Agent.objects.filter(id=other.id).update(archived_at=timezone.now())
    factories.make_agent(Site().runtime, name="Zed")
    assert outcomes(say(site, "@Ann @Zed")) == [("Bot", "assignee", "queued")]


def test_a_reply_is_for_the_agent_that_began_the_thread(site: Site, other: Agent) -> None:
    """A person answers where an agent spoke: that agent hears it, not the assignee, unless it does not begin."""
    root = by_agent(site, other, "which one?")
    assert outcomes(say(site, "the first", root)) == [("Ann", "thread", "queued")]
    (primary,) = open_rows(other)
    (escalation,) = open_rows(site.agent)
    assert (escalation.status, escalation.escalation_for_task_id) == ("deferred", primary.id)
    assert escalation.fire_at is not None
    due = escalation.fire_at - escalation.created_at
    assert abs(due - timedelta(seconds=conf.COMMENT_ESCALATION)) < timedelta(seconds=5)
    say(site, "and the second", root)
    assert len(open_rows(site.agent)) == len(open_rows(other)) == 1


def test_an_escalation_ends_when_the_first_starts_and_fires_when_it_does_not(site: Site, other: Agent) -> None:
    """Q-05: deferred until due; a start of the primary cancels it."""
    say(site, "the first", by_agent(site, other, "which one?"))
    (escalation,) = open_rows(site.agent)
    late = timezone.now() + timedelta(seconds=conf.COMMENT_ESCALATION + 1)
    assert promote.due() == []
    site.runtime.last_seen_at = late
    site.runtime.save()
    promote.run(now=late)
    assert AgentTask.objects.get(id=escalation.id).status == "queued"
    (primary,) = open_rows(other)
    site.runtime.last_seen_at = timezone.now()
    site.runtime.save()
    running = lifecycle.dispatch(primary)
    start.start(site.caller, primary.id, claim_token=running.claim_token)
    assert AgentTask.objects.get(id=escalation.id).status == "cancelled"


def test_no_escalation_to_oneself_or_when_it_is_switched_off(site: Site, other: Agent, settings: Any) -> None:
    """The assignee's own thread needs none."""
    say(site, "go on", by_agent(site, site.agent, "done?"))
    settings.MULTICA = {**settings.MULTICA, "COMMENT_ESCALATION": 0}
    say(site, "go on", by_agent(site, other, "done?"))
    assert not AgentTask.objects.filter(escalation_for_task_id__isnull=False).exists()


def test_agents_are_heard_only_by_name_and_never_by_themselves(site: Site, other: Agent) -> None:
    """D5: a task's comment starts others that it names, with its authority, and itself never."""
    running = site.running()
    caller = Caller(
        "task", site.owner, f"task:{running.id}", task=running, agent_id=site.agent.id, workspace_id=site.workspace.id
    )
    where = scope(caller)
    root = by_agent(site, other, "hello")
    quiet = comments.add(where, site.issue.id, content="noted", parent_id=root.id)
    assert quiet.runs == []
    loud = comments.add(where, site.issue.id, content="@Bot @Ann over to you")
    assert outcomes(loud) == [("Bot", "mention", "blocked"), ("Ann", "mention", "queued")]
    (task,) = open_rows(other)
    assert (task.originator_source, task.delegated_from_task_id) == ("delegation", running.id)
    assert task.originator_user_id == site.owner.id


def test_only_a_name_starts_something_in_the_backlog(site: Site, other: Agent) -> None:
    """An issue that is not wanted yet is talked about without starting anybody."""
    Issue.objects.filter(id=site.issue.id).update(status="backlog")
    assert say(site, "later").runs == []
    assert outcomes(say(site, "@Ann, an estimate please")) == [("Ann", "mention", "queued")]


# --------------------------------------------------------------------------------------------------- changed words


def test_deleting_the_only_words_stops_what_acts_on_them(site: Site) -> None:
    """X-01: waiting or running, the task of a deleted comment ends at once and nothing follows."""
    for step in (lambda task: task, lambda task: lifecycle.start(lifecycle.dispatch(task))):
        written = say(site, "delete the database")
        (task,) = open_rows(site.agent)
        step(task)
        comments.delete(scope(site.caller), written.comment.id)
        ended = AgentTask.objects.get(id=task.id)
        assert ended.status == "cancelled"
        assert open_rows(site.agent) == []
        AgentTask.objects.filter(id=task.id).update(stop_pending_since=None)


def test_deleting_one_of_several_keeps_the_others(site: Site) -> None:
    """LOST-05: the words beside it wait in one new task, in their order, with their writer's authority."""
    first, second, third = (say(site, text).comment for text in ("alpha", "bravo", "charlie"))
    comments.delete(scope(site.caller), second.id)
    (task,) = open_rows(site.agent)
    assert (task.trigger_comment_id, task.coalesced_comment_ids) == (third.id, [first.id])
    assert (task.originator_user_id, task.status) == (site.owner.id, "queued")


def test_deleting_a_comment_on_an_assignment_keeps_the_assignment(site: Site) -> None:
    """LOST-05: the assignment and its note are asked for again without the words."""
    enqueue.assign(site.issue, site.agent, caller=site.caller, handoff_note="only the tests")
    written = say(site, "and the docs")
    assert written.run is not None
    assert written.run.outcome == "coalesced"
    comments.delete(scope(site.caller), written.comment.id)
    (task,) = open_rows(site.agent)
    assert (task.kind, task.trigger_comment_id, task.handoff_note) == ("issue", None, "only the tests")


def test_changed_words_count_instead_of_the_old(site: Site, other: Agent) -> None:
    """The old agent is stopped, the new one started; repeating the same words does nothing; only the author may."""
    written = say(site, "@Bot do it")
    (task,) = open_rows(site.agent)
    again = comments.edit(scope(site.caller), written.comment.id, content="@Bot do it")
    assert again.runs == []
    assert [row.id for row in open_rows(site.agent)] == [task.id]
    changed = comments.edit(scope(site.caller), written.comment.id, content="@Ann do it")
    assert outcomes(changed) == [("Ann", "mention", "queued")]
    assert open_rows(site.agent) == []
    assert AgentTask.objects.get(id=task.id).status == "cancelled"


# --------------------------------------------------------------------------------------------------- during a run


def test_one_follow_up_of_an_agent_that_is_not_the_assignee(site: Site, other: Agent) -> None:
    """Q-10, LOST-05: words that its delivery did not carry come to a named agent in exactly one more task."""
    first, second = say(site, "@Ann alpha").comment, say(site, "@Ann bravo").comment
    (task,) = open_rows(other)
    running = lifecycle.start(lifecycle.dispatch(task))
    AgentTask.objects.filter(id=task.id).update(delivered_comment_ids=[second.id])
    complete(site.caller, running.id, claim_token=running.claim_token, result={})
    (follow,) = open_rows(other)
    assert (follow.trigger_comment_id, follow.coalesced_comment_ids) == (first.id, [])
    assert open_rows(site.agent) == []
