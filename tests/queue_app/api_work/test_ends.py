"""What is told after a failure, and what ends with an archived agent or a member who leaves."""

from __future__ import annotations

from typing import Any

import pytest

from queue_app import auth
from queue_app.models import Agent, AgentRuntime, AgentTask, AuditEntry, Member, PersonalAccessToken
from queue_app.services import fail
from tests.queue_app.api_work.conftest import Api, World, person_token
from tests.support import factories, lifecycle

pytestmark = pytest.mark.django_db(transaction=True)


def fail_with(world: World, task: AgentTask, reason: str, error: str = "gone") -> AgentTask:
    running = lifecycle.start(lifecycle.dispatch(task))
    caller = auth.for_user(world.owner)
    return fail.fail(caller, running.id, claim_token=running.claim_token, error=error, failure_reason=reason)


def assigned(world: World, agent: Agent | None = None) -> AgentTask:
    issue = world.issue(assignee_type="agent", assignee_id=str((agent or world.agent).id))
    (task,) = world.tasks(issue)
    return task


def story(world: World, task: AgentTask) -> Any:
    return world.api.get(f"tasks/{task.id}").json()["retry"]


def test_a_failed_task_says_whether_and_when_it_is_tried_again(world: World) -> None:
    """R-02, R-15, RETRY-03: rule, attempts used, verdict on the conversation, next attempt or why there is none."""
    task = assigned(world)
    assert story(world, task) is None
    first = fail_with(world, task, "agent_error.provider_network")
    told = story(world, first)
    child = AgentTask.objects.get(retry_of_task_id=first.id)
    assert (told["attempt"], told["max_attempts"], told["conversation"]) == (1, 3, "usable")
    assert told["next_task_id"] == str(child.id)
    assert told["next_at"] is not None
    assert "attempt 1 of 3 is used" in told["text"]
    second = fail_with(world, child, "iteration_limit")
    told = story(world, second)
    assert (told["next_task_id"], told["next_at"], told["conversation"]) == (None, None, "poisoned")
    assert told["text"] == "no, because iteration_limit is not retried by itself"


def test_archiving_an_agent_cancels_all_of_its_tasks(world: World) -> None:
    """X-01, CANCEL-05: waiting, dispatched and running; the other agent's stay, and the status follows."""
    other = factories.make_agent(world.runtime)
    kept = assigned(world, other)
    mine = [lifecycle.start(lifecycle.dispatch(assigned_first(world, kept))) for _ in range(1)]
    mine.append(assigned(world))
    answer = world.api.put(f"agents/{world.agent.id}", {"archived": True})
    assert answer.status_code == 200
    ends = {row.id: row for row in AgentTask.objects.filter(id__in=[task.id for task in mine])}
    assert {row.status for row in ends.values()} == {"cancelled"}
    assert ends[mine[0].id].stop_pending_since is not None
    assert AgentTask.objects.get(id=kept.id).status == "queued"
    assert Agent.objects.get(id=world.agent.id).status == "idle"


def assigned_first(world: World, other: AgentTask) -> AgentTask:
    """A task that its runtime's next claim gives before `other`."""
    issue = world.issue(assignee_type="agent", assignee_id=str(world.agent.id), priority="urgent")
    (task,) = world.tasks(issue)
    assert task.priority > other.priority
    return task


def test_a_member_who_leaves_takes_their_work_along(world: World) -> None:
    """X-01, D18: what is open on their machines or of their agents ends; the rest of the workspace works on."""
    guest = factories.make_user()
    Member.objects.create(workspace=world.workspace, user=guest)
    machine = factories.make_runtime(world.workspace, owner=guest)
    theirs = factories.make_agent(machine)
    lent = factories.make_agent(machine, owner=world.owner)
    moved = factories.make_agent(world.runtime, owner=guest)
    rows = [assigned(world, agent) for agent in (theirs, lent, moved)]
    kept = assigned(world)
    token = person_token(guest, world.workspace)
    answer = world.api.delete(f"workspaces/{world.workspace.id}/members/{guest.id}")
    assert (answer.status_code, answer.json()) == (200, {"removed": True, "cancelled": 3})
    assert {AgentTask.objects.get(id=row.id).status for row in rows} == {"cancelled"}
    assert AgentTask.objects.get(id=kept.id).status == "queued"
    assert AgentRuntime.objects.get(id=machine.id).status == "offline"
    assert Api(token).get("me").status_code == 401
    assert PersonalAccessToken.objects.get(user=guest).revoked_at is not None
    assert AuditEntry.objects.get(verb="member.remove").object_id == guest.id


def test_who_may_remove_whom(world: World, other: World) -> None:
    """D18: members nobody, admins no owner, and a workspace keeps its last owner."""
    people = {role: factories.make_user() for role in ("member", "admin", "owner")}
    for role, user in people.items():
        Member.objects.create(workspace=world.workspace, user=user, role=role)
    apis = {role: Api(person_token(user)) for role, user in people.items()}

    def remove(api: Api, user: Any) -> int:
        return int(api.delete(f"workspaces/{world.workspace.id}/members/{user.id}").status_code)

    assert remove(other.api, people["member"]) == 404
    assert remove(apis["member"], people["admin"]) == 403
    assert remove(apis["admin"], people["owner"]) == 403
    assert remove(apis["admin"], other.owner) == 404
    assert remove(apis["owner"], world.owner) == 200
    assert remove(apis["owner"], people["owner"]) == 409
    assert remove(apis["member"], people["member"]) == 200
    task_api = other.agent_api(assigned(other))
    assert task_api.delete(f"workspaces/{other.workspace.id}/members/{other.owner.id}").status_code == 403
