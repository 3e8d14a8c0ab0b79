"""Connected apps: each task takes a copy along when it is queued, and nobody reads the secret back."""

from __future__ import annotations

from typing import Any

import pytest

from queue_app import auth
from queue_app.models import AgentTask, AuditEntry, Member
from queue_app.services import claim, fail, rerun
from tests.queue_app.api_work.conftest import Api, World, person_token
from tests.support import factories, lifecycle

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = {"url": "https://mcp.example.test/s3cr3t"}


def connect(world: World, name: str, server: Any = SECRET) -> str:
    body = {"provider": "composio", "server_name": name, "toolkit_slug": "gh", "server": server}
    answer = world.api.post("connected-apps", body)
    assert answer.status_code == 201, answer.content
    assert "s3cr3t" not in answer.content.decode()
    return str(answer.json()["id"])


def claimed(world: World) -> dict[str, Any]:
    (wire,) = claim.claim(
        auth.for_user(world.owner),
        daemon_id=world.runtime.daemon_id,
        runtime_ids=[str(world.runtime.id)],
        max_tasks=1,
        timeout_ms=None,
        door="http",
    )
    return wire


def assigned(world: World) -> AgentTask:
    issue = world.issue(assignee_type="agent", assignee_id=str(world.agent.id))
    return world.tasks(issue)[0]


def test_a_task_keeps_the_apps_of_its_enqueue(world: World) -> None:
    """Q-19: what is connected or disconnected later reaches the next task, a retry and a rerun, not this one."""
    first = connect(world, "github")
    assigned(world)
    assert world.api.delete(f"connected-apps/{first}").status_code == 200
    connect(world, "linear", {"command": "x"})
    wire = claimed(world)
    assert wire["agent"]["mcp_config"] == {"mcpServers": {"github": SECRET}}
    assert [(app["server_name"], app["toolkit_slug"]) for app in wire["connected_apps"]] == [("github", "gh")]
    task = lifecycle.start(AgentTask.objects.get(id=wire["id"]))
    caller = auth.for_user(world.owner)
    fail.fail(caller, task.id, claim_token=task.claim_token, error="x", failure_reason="timeout")
    ended = AgentTask.objects.get(id=task.id)
    assert (ended.runtime_mcp_overlay, ended.runtime_connected_apps) == (None, None)
    again = AgentTask.objects.get(retry_of_task_id=task.id)
    assert again.runtime_mcp_overlay == {"mcpServers": {"linear": {"command": "x"}}}
    assert rerun.rerun(caller, task.id).runtime_mcp_overlay == again.runtime_mcp_overlay


def test_a_quick_create_and_a_follower_take_them_too(world: World) -> None:
    """Q-19: every way to queue for a person, also behind a task that is about to start; none leaves them null."""
    task = assigned(world)
    assert task.runtime_mcp_overlay is None
    lifecycle.dispatch(task)
    connect(world, "github")
    world.api.post(f"issues/{task.issue_id}/comments", {"content": "more"})
    body = {"agent_id": str(world.agent.id), "prompt": "x"}
    world.api.post("issues/quick-create", body)
    new = AgentTask.objects.exclude(id=task.id)
    assert {(row.kind, row.status) for row in new} == {("comment", "deferred"), ("quick_create", "queued")}
    assert all(row.runtime_mcp_overlay == {"mcpServers": {"github": SECRET}} for row in new)


def test_the_secret_is_never_read_back_and_only_admins_connect(world: World, other: World) -> None:
    """D18: not by the list, the task, the audit, a member, a task or another workspace."""
    ident = connect(world, "github")
    task = assigned(world)
    member = factories.make_user()
    Member.objects.create(workspace=world.workspace, user=member)
    agent = world.agent_api(task)
    for api in (world.api, Api(person_token(member)), agent):
        for path in ("connected-apps", f"tasks/{task.id}"):
            answer = api.get(path)
            assert answer.status_code == 200
            assert "s3cr3t" not in answer.content.decode()
    assert "s3cr3t" not in str(list(AuditEntry.objects.values()))
    body = {"provider": "p", "server_name": "n", "server": {}}
    assert agent.post("connected-apps", body).status_code == 403
    assert Api(person_token(member)).post("connected-apps", body).status_code == 403
    assert Api(person_token(member)).delete(f"connected-apps/{ident}").status_code == 403
    assert other.api.delete(f"connected-apps/{ident}").status_code == 404
    assert other.api.get("connected-apps").json() == []
    assert world.api.post("connected-apps", {**body, "server_name": "github"}).status_code == 409
    assert world.api.post("connected-apps", {**body, "server": "x"}).json()["field"] == "server"
