"""Who asked, who answers, why, and on whose task: for every way in which work begins, and for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from queue_app import transitions
from queue_app.auth import Caller
from queue_app.models import AgentTask
from queue_app.services import comments, enqueue, fail, quick_create, rerun, verify_history
from queue_app.services.enqueue_autopilot import enqueue_autopilot
from queue_app.services.scope import scope
from queue_app.sql import edges
from queue_app.sql.statements import Transition
from queue_app.transitions import Report
from tests.support import factories, lifecycle
from tests.support.lifecycle import DAEMON, Site

pytestmark = pytest.mark.django_db

PEOPLE = (
    "originator_user_id",
    "accountable_user_id",
    "originator_source",
    "delegated_from_task_id",
    "trigger_evidence_kind",
    "trigger_evidence_ref_id",
)


@pytest.fixture
def site() -> Site:
    return Site()


def people_of(task: AgentTask) -> tuple[Any, ...]:
    return tuple(AgentTask.objects.values_list(*PEOPLE).get(id=task.id))


def done(made: AgentTask | None) -> AgentTask:
    assert made is not None
    return made


def as_task(task: AgentTask, site: Site) -> Caller:
    return Caller(
        "task", site.owner, f"task:{task.id}", task=task, agent_id=task.agent_id, workspace_id=task.workspace_id
    )


def failed_task(site: Site) -> AgentTask:
    task = site.running(
        trigger_evidence_kind="issue_assignment",
        trigger_evidence_ref_id=site.issue.id,
        originator_source="direct_human",
    )
    return fail.fail(site.caller, task.id, claim_token=task.claim_token, error="x", failure_reason="timeout")


def by_assignment(site: Site) -> tuple[AgentTask, tuple[Any, ...]]:
    task = done(enqueue.assign(site.issue, site.agent, caller=site.caller).task)
    return task, (site.owner.id, site.owner.id, "direct_human", None, "issue_assignment", site.issue.id)


def by_comment(site: Site) -> tuple[AgentTask, tuple[Any, ...]]:
    written = comments.add(scope(site.caller), site.issue.id, content="please")
    assert written.run is not None
    return done(written.run.task), (
        site.owner.id,
        site.owner.id,
        "direct_human",
        None,
        "comment",
        written.comment.id,
    )


def by_delegation(site: Site) -> tuple[AgentTask, tuple[Any, ...]]:
    helper = factories.make_agent(site.runtime, name="Helper")
    running = site.running()
    written = comments.add(scope(as_task(running, site)), site.issue.id, content="@Helper please")
    assert written.run is not None
    task = done(written.run.task)
    assert task.agent_id == helper.id
    return task, (site.owner.id, site.owner.id, "delegation", running.id, "comment", written.comment.id)


def by_autopilot(site: Site) -> tuple[AgentTask, tuple[Any, ...]]:
    run = uuid4()
    outcome = enqueue_autopilot(
        workspace_id=site.workspace.id,
        agent=site.agent,
        autopilot_id=uuid4(),
        run_id=run,
        context={"source": "schedule"},
        accountable_user_id=site.owner.id,
        actor="server",
    )
    return done(outcome.task), (None, site.owner.id, "rule_owner", None, "autopilot_run", run)


def by_quick_create(site: Site) -> tuple[AgentTask, tuple[Any, ...]]:
    task = quick_create.quick_create(scope(site.caller), {"agent_id": site.agent.id, "prompt": "x"})
    return task, (site.owner.id, site.owner.id, "direct_human", None, "quick_create", site.owner.id)


def by_retry(site: Site) -> tuple[AgentTask, tuple[Any, ...]]:
    parent = failed_task(site)
    return AgentTask.objects.get(retry_of_task_id=parent.id), people_of(parent)


def by_rerun(site: Site) -> tuple[AgentTask, tuple[Any, ...]]:
    source = failed_task(site)
    task = rerun.rerun(site.caller, source.id)
    return task, (site.owner.id, site.owner.id, "direct_human", None, "rerun", source.id)


def by_the_server(site: Site) -> tuple[AgentTask, tuple[Any, ...]]:
    task = done(enqueue.assign(site.issue, site.agent, caller="server").task)
    return task, (None, site.agent.owner_id, "owner_fallback", None, "issue_assignment", site.issue.id)


WAYS: list[Callable[[Site], tuple[AgentTask, tuple[Any, ...]]]] = [
    by_assignment,
    by_comment,
    by_delegation,
    by_autopilot,
    by_quick_create,
    by_retry,
    by_rerun,
    by_the_server,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_trigger_fills_them_and_a_life_leaves_them(site: Site, way: Any) -> None:
    """Q-09, Q-18: taken at enqueue time, the same after claim, start, pin and end, and the history agrees."""
    task, wanted = way(site)
    assert people_of(task) == wanted
    running = lifecycle.start(lifecycle.dispatch(task))
    token = running.claim_token
    transitions.pin_session(task.id, claim_token=token, session_id="s", work_dir="/w", actor=DAEMON)
    transitions.complete(task.id, claim_token=token, result={}, report=Report(), actor=DAEMON)
    assert people_of(task) == wanted
    assert [batch.findings for batch in verify_history.verify(task_id=task.id)] == [()]


def test_only_new_words_that_join_a_waiting_task_change_them() -> None:
    """Q-09: no verb but merge writes any of these columns, and merge writes all of them as one."""
    writers: dict[str, set[str]] = {}
    for value in vars(edges).values():
        if isinstance(value, Transition):
            touched = set(PEOPLE) & set(value.sets)
            if touched:
                writers[value.verb] = touched
    assert writers == {"merge": set(PEOPLE)}


def test_a_person_who_joins_a_delegated_task_takes_it_over(site: Site) -> None:
    """Q-09, scheduler 14.12: the delegation goes with the words that brought it."""
    helper = factories.make_agent(site.runtime, name="Helper")
    running = site.running()
    comments.add(scope(as_task(running, site)), site.issue.id, content="@Helper please")
    guest: UUID = site.owner.id
    written = comments.add(scope(site.caller), site.issue.id, content="@Helper now")
    task = AgentTask.objects.get(agent=helper)
    assert people_of(task) == (guest, guest, "direct_human", None, "comment", written.comment.id)


def test_an_agents_words_that_join_a_persons_task_name_their_run(site: Site) -> None:
    """Q-09, scheduler 14.13: no words ride on a task without the authority that they came with."""
    helper = factories.make_agent(site.runtime, name="Helper")
    running = site.running()
    comments.add(scope(site.caller), site.issue.id, content="@Helper now")
    written = comments.add(scope(as_task(running, site)), site.issue.id, content="@Helper, and this")
    task = AgentTask.objects.get(agent=helper)
    assert people_of(task)[2:] == ("delegation", running.id, "comment", written.comment.id)
