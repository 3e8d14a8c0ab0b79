"""What an assignment, a comment, a cancel and a rerun do to the queue, for people and for task tokens."""

from __future__ import annotations

from uuid import uuid4

import pytest

from queue_app.models import AgentTask, AuditEntry, TaskMessage, TaskUsage
from tests.queue_app.api_work.conftest import World, dispatch, event_count
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)


def assigned(world: World, **fields: object) -> dict[str, object]:
    return {"assignee_type": "agent", "assignee_id": str(world.agent.id), **fields}


def test_an_issue_made_for_an_agent_is_queued(world: World) -> None:
    issue = world.issue(**assigned(world, priority="high", handoff_note="mind the gap"))
    (task,) = world.tasks(issue)
    assert (task.status, task.agent_id, task.runtime_id) == ("queued", world.agent.id, world.runtime.id)
    assert (task.priority, task.serial_key, task.handoff_note) == (3, f"issue:{issue.id}", "mind the gap")
    assert task.accountable_user_id == world.owner.id


def test_the_type_of_an_assignee_may_be_left_out(world: World) -> None:
    issue = world.issue(assignee_id=str(world.agent.id))
    assert issue.assignee_type == "agent"
    assert len(world.tasks(issue)) == 1
    assert world.issue(assignee_id=str(world.owner.id)).assignee_type == "member"


@pytest.mark.parametrize("fields", [{"suppress_run": True}, {"status": "backlog"}, {"status": "done"}])
def test_some_assignments_start_nothing(world: World, fields: dict[str, object]) -> None:
    assert world.tasks(world.issue(**assigned(world, **fields))) == []


def test_the_answer_says_what_became_of_the_work(world: World) -> None:
    made = world.api.post("issues", {"title": "x", **assigned(world)}).json()
    (task,) = AgentTask.objects.filter(issue_id=made["id"])
    assert made["run"] == {"outcome": "queued", "task_id": str(task.id), "reason": None}
    said = world.api.post(f"issues/{made['id']}/comments", {"content": "more"}).json()
    assert said["run"] == {"outcome": "coalesced", "task_id": str(task.id), "reason": None}
    world.api.put(f"agents/{world.agent.id}", {"runtime_id": None})
    blocked = world.api.post("issues", {"title": "y", **assigned(world)}).json()
    assert blocked["run"] == {"outcome": "blocked", "task_id": None, "reason": "agent_runtime_required"}
    assert world.api.put(f"issues/{made['id']}", {"title": "z"}).json()["run"] is None


def test_leaving_the_backlog_starts_the_agent_once(world: World) -> None:
    issue = world.issue(**assigned(world, status="backlog"))
    world.api.put(f"issues/{issue.id}", {"status": "todo"})
    assert len(world.tasks(issue)) == 1
    for status in ("in_progress", "in_review", "done", "todo"):
        world.api.put(f"issues/{issue.id}", {"status": status})
    world.api.put(f"issues/{issue.id}", assigned(world))
    assert [task.status for task in world.tasks(issue)] == ["queued"]


def test_reassigning_takes_what_waits_and_leaves_what_runs(world: World) -> None:
    """Q-23, D5: the old agent's queued task is cancelled, so its next claim is empty; its active one goes on."""
    second = factories.make_agent(factories.make_runtime(world.workspace))
    waiting = world.issue(**assigned(world))
    world.api.put(f"issues/{waiting.id}", {"assignee_type": "agent", "assignee_id": str(second.id)})
    assert [(t.agent_id, t.status) for t in world.tasks(waiting)] == [
        (world.agent.id, "cancelled"),
        (second.id, "queued"),
    ]
    active = world.issue(**assigned(world))
    dispatch(world.tasks(active)[0])
    world.api.put(f"issues/{active.id}", {"assignee_type": "agent", "assignee_id": str(second.id)})
    assert [(t.agent_id, t.status) for t in world.tasks(active)] == [
        (world.agent.id, "dispatched"),
        (second.id, "queued"),
    ]


def test_unassigning_cancels_what_waits(world: World) -> None:
    issue = world.issue(**assigned(world))
    answer = world.api.put(f"issues/{issue.id}", {"assignee_id": None})
    assert (answer.json()["assignee_type"], answer.json()["assignee_id"]) == (None, None)
    assert [task.status for task in world.tasks(issue)] == ["cancelled"]


def test_no_status_can_be_written_to_a_task(world: World) -> None:
    """Q-06: the issue API has no way to set a task's state; what it offers goes through transitions."""
    issue = world.issue(**assigned(world))
    (task,) = world.tasks(issue)
    for verb in ("PUT", "PATCH", "POST", "DELETE"):
        assert world.api.call(verb, f"tasks/{task.id}", {"status": "completed"}).status_code == 405
    world.api.put(f"issues/{issue.id}", {"status": "done", "task_status": "completed", "tasks": [{"status": "failed"}]})
    world.api.post(f"tasks/{task.id}/cancel", {"status": "completed"})
    task.refresh_from_db()
    assert (task.status, event_count(task.id)) == ("cancelled", 2)


def test_a_persons_comment_starts_the_assigned_agent(world: World) -> None:
    issue = world.issue(**assigned(world, suppress_run=True))
    world.api.post(f"issues/{issue.id}/comments", {"content": "please look"})
    (task,) = world.tasks(issue)
    assert (task.status, task.kind, task.trigger_comment_id is not None) == ("queued", "comment", True)
    world.api.post(f"issues/{issue.id}/comments", {"content": "and this"})
    (merged,) = world.tasks(issue)
    assert merged.coalesced_comment_ids == [task.trigger_comment_id]


def test_a_comment_of_a_task_is_its_agents_and_starts_not_itself(world: World) -> None:
    """A comment posted by a task token is authored by the agent and must not start a new run of the same agent."""
    issue = world.issue(**assigned(world))
    task = world.tasks(issue)[0]
    api = world.agent_api(task)
    made = api.post(f"issues/{issue.identifier}/comments", {"content": "done so far"}).json()
    assert (made["author_type"], made["author_id"]) == ("agent", str(world.agent.id))
    assert made["source_task_id"] == str(task.id)
    assert [t.id for t in world.tasks(issue)] == [task.id]


def test_a_task_works_on_its_issue_as_its_agent(world: World) -> None:
    issue = world.issue(**assigned(world))
    api = world.agent_api(world.tasks(issue)[0])
    assert api.get(f"issues/{issue.identifier}").json()["id"] == str(issue.id)
    assert api.put(f"issues/{issue.id}", {"status": "in_review"}).json()["status"] == "in_review"
    child = api.post("issues", {"title": "child", "parent_issue_id": str(issue.id)}).json()
    assert (child["creator_type"], child["creator_id"]) == ("agent", str(world.agent.id))
    assert [agent["name"] for agent in api.get("agents").json()] == [world.agent.name]
    assert len(world.tasks(issue)) == 1


def test_a_task_token_stays_in_its_workspace_whatever_the_request_names(world: World, other: World) -> None:
    """The token fixes the workspace and overrides headers, query and body."""
    issue = world.issue(**assigned(world))
    second = factories.make_workspace(world.owner)
    foreign = factories.make_issue(second, number=7)
    api = world.agent_api(world.tasks(issue)[0])
    api.headers = {"X-Workspace-ID": str(second.id), "X-Agent-ID": str(other.agent.id), "X-Task-ID": str(uuid4())}
    assert api.get(f"issues/{foreign.id}").status_code == 404
    assert api.get("issues/MUL-7").status_code == 404
    assert api.get(f"issues/{issue.id}", workspace_id=str(second.id)).status_code == 200
    made = api.post("issues", {"title": "mine", "workspace_id": str(second.id)}).json()
    assert (made["workspace_id"], made["creator_id"]) == (str(world.workspace.id), str(world.agent.id))
    assert api.get(f"workspaces/{second.id}").status_code == 404


def test_routes_for_people_refuse_a_task(world: World) -> None:
    issue = world.issue(**assigned(world))
    api = world.agent_api(world.tasks(issue)[0])
    workspace, agent = world.workspace.id, world.agent.id
    for verb, path, body in (
        ("POST", "agents", {"name": "mole", "runtime_id": str(world.runtime.id)}),
        ("PUT", f"agents/{agent}", {"custom_args": ["--yolo"]}),
        ("PATCH", f"workspaces/{workspace}", {"repos": ["https://example.test/x"]}),
        (
            "POST",
            f"workspaces/{workspace}/runtime-profiles",
            {"display_name": "sh", "command_name": "sh", "protocol_family": "plain"},
        ),
        ("DELETE", f"issues/{issue.id}", None),
    ):
        answer = api.call(verb, path, body)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
    world.agent.refresh_from_db()
    assert world.agent.custom_args == []


def test_a_token_of_an_ended_task_is_worth_nothing(world: World) -> None:
    issue = world.issue(**assigned(world))
    task = world.tasks(issue)[0]
    api = world.agent_api(task)
    assert world.api.post(f"tasks/{task.id}/cancel").status_code == 200
    assert api.get(f"issues/{issue.id}").status_code == 401


def test_cancel_is_immediate_and_may_be_repeated(world: World) -> None:
    """X-01: the answer and the row say cancelled at once. Cancelling an ended task returns it unchanged."""
    issue = world.issue(**assigned(world))
    (task,) = world.tasks(issue)
    for _ in range(2):
        answer = world.api.post(f"tasks/{task.id}/cancel", {"note": "not now"})
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert event_count(task.id) == 2
    assert AuditEntry.objects.filter(object_id=task.id).count() == 1
    assert world.api.post(f"tasks/{uuid4()}/cancel").json()["error"] == "task not found"


def test_a_rerun_is_a_new_attempt_linked_to_the_old(world: World) -> None:
    issue = world.issue(**assigned(world))
    (task,) = world.tasks(issue)
    world.api.post(f"tasks/{task.id}/cancel")
    answer = world.api.post(f"issues/{issue.id}/rerun", {"task_id": str(task.id)})
    assert answer.status_code == 201, answer.content
    again = AgentTask.objects.get(id=answer.json()["id"])
    assert (again.rerun_of_task_id, again.agent_id, again.status) == (task.id, world.agent.id, "queued")
    assert again.force_fresh_session
    elsewhere = world.issue(**assigned(world))
    refused = world.api.post(f"issues/{elsewhere.id}/rerun", {"task_id": str(task.id)})
    assert (refused.status_code, refused.json()["field"]) == (400, "task_id")


def test_runs_messages_and_usage_are_readable(world: World, other: World) -> None:
    issue = world.issue(**assigned(world))
    (task,) = world.tasks(issue)
    for seq in (2, 1, 3):
        TaskMessage.objects.create(task=task, seq=seq, type="tool_use", tool="t", content=f"c{seq}", input={"a": seq})
    TaskUsage.objects.create(task=task, provider="p", model="m", input_tokens=5, output_tokens=7)
    (run,) = world.api.get(f"issues/{issue.id}/task-runs").json()
    assert (run["id"], run["agent_id"], run["status"]) == (str(task.id), str(world.agent.id), "queued")
    messages = world.api.get(f"tasks/{task.id}/messages", since=1).json()
    assert [(m["seq"], m["content"], m["input"]) for m in messages] == [(2, "c2", {"a": 2}), (3, "c3", {"a": 3})]
    usage = world.api.get(f"issues/{issue.id}/usage").json()
    assert (usage["total_input_tokens"], usage["total_output_tokens"], usage["task_count"]) == (5, 7, 1)
    detail = world.api.get(f"tasks/{task.id}").json()
    assert detail["progress"] is None
    assert "claim_token" not in detail
    assert "context" not in detail
    for path in (f"tasks/{task.id}", f"tasks/{task.id}/messages"):
        assert other.api.get(path).json()["error"] == "task not found"
