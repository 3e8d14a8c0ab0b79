"""Squads: what is given to one becomes its leader's task, and the leader hands it on."""

from __future__ import annotations

from typing import Any

import pytest

from queue_app.auth import for_user
from queue_app.models import Agent, AgentTask, AuditEntry, Comment, InboxItem, Member, Squad
from queue_app.services import claim
from queue_app.services.complete import complete
from tests.queue_app.api_work.conftest import Api, World, person_token
from tests.support import factories, lifecycle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def hand(world: World) -> Agent:
    return factories.make_agent(world.runtime, name="Hand")


def make_squad(world: World, *members: Agent, **fields: Any) -> Squad:
    listed = [{"member_type": "agent", "member_id": str(member.id)} for member in members]
    body = {"name": "Core", "leader_id": str(world.agent.id), "members": listed, **fields}
    answer = world.api.post("squads", body)
    assert answer.status_code == 201, answer.content
    return Squad.objects.get(id=answer.json()["id"])


def claimed(world: World) -> dict[str, Any]:
    (wire,) = claim.claim(
        for_user(world.owner),
        daemon_id=world.runtime.daemon_id,
        runtime_ids=[str(world.runtime.id)],
        max_tasks=5,
        timeout_ms=None,
        door="http",
    )
    return wire


def test_an_assignment_to_a_squad_is_its_leaders_task(world: World, hand: Agent) -> None:
    """Q-13, Q-20: the row names the squad and the role, and the answer carries note, squad and briefing."""
    squad = make_squad(world, hand, instructions="tests first")
    issue = world.issue(assignee_type="squad", assignee_id=str(squad.id), handoff_note="only the parser")
    (task,) = world.tasks(issue)
    assert (task.agent_id, task.is_leader_task, task.squad_id) == (world.agent.id, True, squad.id)
    assert task.handoff_note == "only the parser"
    wire = claimed(world)
    assert (wire["is_leader_task"], wire["squad_id"], wire["squad_name"]) == (True, str(squad.id), "Core")
    assert wire["handoff_note"] == "only the parser"
    assert "@Hand" in wire["agent"]["instructions"]
    assert "tests first" in wire["agent"]["instructions"]


def test_the_leader_delegates_by_name(world: World, hand: Agent) -> None:
    """Q-09: the member's task has the authority of the leader's and names it; without a name nobody starts."""
    squad = make_squad(world, hand)
    issue = world.issue(assignee_type="squad", assignee_id=str(squad.id))
    (leading,) = world.tasks(issue)
    api = world.agent_api(leading)
    assert api.post(f"issues/{issue.id}/comments", {"content": "I will see"}).json()["runs"] == []
    (run,) = api.post(f"issues/{issue.id}/comments", {"content": "@Hand please"}).json()["runs"]
    task = AgentTask.objects.get(id=run["task_id"])
    assert (task.agent_id, task.is_leader_task, task.squad_id) == (hand.id, False, None)
    assert (task.delegated_from_task_id, task.originator_user_id) == (leading.id, world.owner.id)
    (own,) = api.post(f"issues/{issue.id}/comments", {"content": "@Core"}).json()["runs"]
    assert own["reason"] == "self_trigger_suppressed"


def test_comments_and_names_of_a_squad_reach_its_leader(world: World, hand: Agent) -> None:
    """Q-13: a person's comment on the squad's issue, and its name on any other."""
    squad = make_squad(world, hand)
    issue = world.issue(assignee_type="squad", assignee_id=str(squad.id), suppress_run=True)
    (run,) = world.api.post(f"issues/{issue.id}/comments", {"content": "well?"}).json()["runs"]
    task = AgentTask.objects.get(id=run["task_id"])
    assert (task.agent_id, task.is_leader_task, run["why"]) == (world.agent.id, True, "assignee")
    other = world.issue()
    (run,) = world.api.post(f"issues/{other.id}/comments", {"content": "@Core @Core help"}).json()["runs"]
    assert (run["agent_id"], run["why"]) == (str(world.agent.id), "mention")


def test_taking_it_from_the_squad_takes_what_waits(world: World, hand: Agent) -> None:
    """Q-23: the leader's queued task goes, the new assignee gets one."""
    squad = make_squad(world)
    issue = world.issue(assignee_type="squad", assignee_id=str(squad.id))
    world.api.put(f"issues/{issue.id}", {"assignee_id": str(hand.id)})
    first, second = world.tasks(issue)
    assert (first.status, second.status, second.agent_id) == ("cancelled", "queued", hand.id)
    assert second.is_leader_task is False


def test_a_leader_task_whose_squad_is_gone_is_an_ordinary_one(world: World) -> None:
    """The role is cleared in the answer when its briefing cannot be given."""
    squad = make_squad(world)
    world.issue(assignee_type="squad", assignee_id=str(squad.id))
    squad.delete()
    wire = claimed(world)
    assert wire["is_leader_task"] is False
    assert "squad_name" not in wire


def test_who_may_make_and_change_squads(world: World, other: World, hand: Agent) -> None:
    """D18: admins of the workspace, members of the workspace; each change is audited; agents may not."""
    squad = make_squad(world, hand)
    member = factories.make_user()
    Member.objects.create(workspace=world.workspace, user=member)
    assert Api(person_token(member)).put(f"squads/{squad.id}", {"name": "x"}).status_code == 403
    assert other.api.put(f"squads/{squad.id}", {"name": "x"}).status_code == 404
    foreign = {"member_type": "agent", "member_id": str(other.agent.id)}
    for body in ({"leader_id": str(other.agent.id)}, {"members": [foreign]}):
        assert world.api.put(f"squads/{squad.id}", body).status_code == 400
    assert world.api.post("squads", {"name": "Core", "leader_id": str(hand.id)}).status_code == 409
    issue = world.issue(assignee_type="squad", assignee_id=str(squad.id))
    task = lifecycle.start(lifecycle.dispatch(world.tasks(issue)[0]))
    assert world.agent_api(task).post("squads", {"name": "Mine", "leader_id": str(hand.id)}).status_code == 403
    assert world.api.put(f"squads/{squad.id}", {"archived": True}).json()["archived_at"] is not None
    assert world.api.get("squads").json() == []
    refused = world.api.post("issues", {"title": "n", "assignee_type": "squad", "assignee_id": str(squad.id)})
    assert (refused.status_code, refused.json()["field"]) == (400, "assignee_id")
    assert AuditEntry.objects.filter(object_id=squad.id).count() == 2


def test_a_colleague_does_not_see_anothers_inbox(world: World) -> None:
    """D18: an inbox is one person's, also inside one workspace."""
    item = InboxItem.objects.create(
        workspace=world.workspace, user=world.owner, type="quick_create_done", title="for one"
    )
    member = factories.make_user()
    Member.objects.create(workspace=world.workspace, user=member)
    api = Api(person_token(member))
    assert api.get("inbox").json() == []
    assert api.post(f"inbox/{item.id}/read").status_code == 404


@pytest.mark.parametrize(("outcome", "posts"), [("no_action", 0), ("action", 1)])
def test_a_leader_that_decides_for_nothing_says_nothing(world: World, outcome: str, posts: int) -> None:
    """Q-20: the verdict is kept, the last one counts, and after `no_action` the last words are not posted."""
    squad = make_squad(world)
    issue = world.issue(assignee_type="squad", assignee_id=str(squad.id))
    task = lifecycle.start(lifecycle.dispatch(world.tasks(issue)[0]))
    api = world.agent_api(task)
    assert api.post(f"issues/{issue.id}/squad-evaluated", {"outcome": "failed"}).status_code == 200
    kept = api.post(f"issues/{issue.identifier}/squad-evaluated", {"outcome": outcome, "reason": "r"}).json()
    assert (kept["outcome"], kept["squad_id"], kept["task_id"]) == (outcome, str(squad.id), str(task.id))
    complete(for_user(world.owner), task.id, claim_token=task.claim_token, result={"output": "nothing to do here"})
    assert Comment.objects.filter(issue=issue).count() == posts


def test_only_the_leaders_task_judges_its_own_issue(world: World, other: World, hand: Agent) -> None:
    """D18: not a person, not a member's task, not another issue, not another workspace."""
    squad = make_squad(world, hand)
    issue = world.issue(assignee_type="squad", assignee_id=str(squad.id))
    (leading,) = world.tasks(issue)
    leader = world.agent_api(leading)
    (run,) = leader.post(f"issues/{issue.id}/comments", {"content": "@Hand please"}).json()["runs"]
    member = world.agent_api(AgentTask.objects.get(id=run["task_id"]))
    path, body = f"issues/{issue.id}/squad-evaluated", {"outcome": "action"}
    assert world.api.post(path, body).status_code == 403
    assert member.post(path, body).status_code == 403
    assert leader.post(f"issues/{world.issue().id}/squad-evaluated", body).status_code == 403
    assert other.api.post(path, body).status_code == 404
    assert leader.post(path, {"outcome": "maybe"}).status_code == 400
