"""Agents, profiles, repositories, members; authentication; the schema."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from queue_app.models import Agent, AuditEntry, Member, RuntimeProfile
from tests.queue_app.api_work.conftest import Api, World, person_token
from tests.support import factories

pytestmark = pytest.mark.django_db


def test_an_agent_is_made_and_changed_by_people(world: World) -> None:
    body = {
        "name": "Ada",
        "runtime_id": str(world.runtime.id),
        "custom_env": {"API_KEY": "s3cret-value"},
        "mcp_config": {"servers": {"x": {"token": "s3cret-value"}}},
        "max_concurrent_tasks": 2,
    }
    made = world.api.post("agents", body)
    assert made.status_code == 201, made.content
    assert made.json()["custom_env_keys"] == ["API_KEY"]
    assert made.json()["has_mcp_config"] is True
    assert b"s3cret-value" not in made.content + world.api.get("agents").content
    agent = Agent.objects.get(id=made.json()["id"])
    assert (agent.owner_id, agent.custom_env) == (world.owner.id, {"API_KEY": "s3cret-value"})
    assert world.api.post("agents", body).json()["code"] == "name_taken"
    changed = world.api.put(f"agents/{agent.id}", {"model": "m", "runtime_id": None}).json()
    assert (changed["model"], changed["runtime_id"], changed["max_concurrent_tasks"]) == ("m", None, 2)
    assert world.api.put(f"agents/{agent.id}", {"archived": True}).json()["archived_at"]
    assert str(agent.id) not in [a["id"] for a in world.api.get("agents").json()]
    assert str(agent.id) in [a["id"] for a in world.api.get("agents", include_archived="true").json()]
    assert world.api.put(f"agents/{agent.id}", {"archived": False}).json()["archived_at"] is None
    entries = AuditEntry.objects.filter(object_id=agent.id)
    assert entries.count() == 4
    assert "s3cret-value" not in str(list(entries.values()))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x", "max_concurrent_tasks": 0}, "max_concurrent_tasks"),
        ({"name": "x", "max_concurrent_tasks": 51}, "max_concurrent_tasks"),
        ({"name": "x", "max_concurrent_tasks": "6"}, "max_concurrent_tasks"),
        ({"name": "x", "custom_env": ["A=1"]}, "custom_env"),
        ({"name": "x", "custom_env": {"A": 1}}, "custom_env"),
        ({"name": "x", "custom_env": {"A B": "1"}}, "custom_env"),
        ({"name": "x", "custom_args": "--fast"}, "custom_args"),
        ({"name": "x", "custom_args": [1]}, "custom_args.0"),
        ({"name": "x", "runtime_id": "r"}, "runtime_id"),
    ],
)
def test_a_wrong_agent_is_refused_with_its_field(world: World, body: Any, field: str) -> None:
    answer = world.api.post("agents", body)
    assert (answer.status_code, answer.json()["field"]) == (400, field), answer.content


def test_a_runtime_of_another_workspace_cannot_be_bound(world: World, other: World) -> None:
    answer = world.api.put(f"agents/{world.agent.id}", {"runtime_id": str(other.runtime.id)})
    assert (answer.status_code, answer.json()["field"]) == (400, "runtime_id")
    assert world.api.get(f"agents/{other.agent.id}").status_code == 404
    assert world.api.put(f"agents/{other.agent.id}", {"model": "m"}).status_code == 404


def test_a_member_changes_own_agents_only_and_no_settings(world: World) -> None:
    member = factories.make_user()
    Member.objects.create(workspace=world.workspace, user=member)
    api = Api(person_token(member))
    own = api.post("agents", {"name": "Own"}).json()
    assert api.put(f"agents/{own['id']}", {"model": "m"}).status_code == 200
    assert api.put(f"agents/{world.agent.id}", {"model": "m"}).status_code == 403
    assert api.patch(f"workspaces/{world.workspace.id}", {"name": "mine"}).status_code == 403
    profile = {"display_name": "sh", "command_name": "sh", "protocol_family": "plain"}
    assert api.post(f"workspaces/{world.workspace.id}/runtime-profiles", profile).status_code == 403


def test_repositories_are_replaced_and_deduplicated(world: World) -> None:
    path = f"workspaces/{world.workspace.id}"
    repos = [{"url": "/srv/a", "description": "first"}, "git@example.test:b.git", {"url": "/srv/a"}]
    changed = world.api.patch(path, {"repos": repos})
    assert changed.status_code == 200, changed.content
    assert changed.json()["repos"] == [{"url": "/srv/a", "description": "first"}, {"url": "git@example.test:b.git"}]
    assert world.api.get(path).json()["repos"] == changed.json()["repos"]
    for url in ("--upload-pack=touch /tmp/x", "ext::/bin/id", "ext::sh -c id", "", 5, "a b"):
        answer = world.api.patch(path, {"repos": [{"url": url}]})
        assert (answer.status_code, answer.json()["field"].split(".")[0]) == (400, "repos"), url
    assert world.issue().number == 1, "the counter of issues survives a change of the workspace"
    assert [m["user_id"] for m in world.api.get(f"{path}/members").json()] == [str(world.owner.id)]
    assert world.api.get("squads").json() == []


def test_a_runtime_profile_is_made_and_changed(world: World, other: World) -> None:
    path = f"workspaces/{world.workspace.id}/runtime-profiles"
    body = {"display_name": "Script", "command_name": "/bin/true", "protocol_family": "plain", "fixed_args": ["-x"]}
    made = world.api.post(path, body)
    assert made.status_code == 201, made.content
    assert world.api.post(path, body).status_code == 409
    assert world.api.post(path, {**body, "protocol_family": "telnet"}).json()["field"] == "protocol_family"
    ident = made.json()["id"]
    assert world.api.put(f"runtime-profiles/{ident}", {"enabled": False}).json()["enabled"] is False
    assert RuntimeProfile.objects.get(id=ident).fixed_args == ["-x"]
    assert other.api.put(f"runtime-profiles/{ident}", {"enabled": True}).status_code == 404
    assert [p["id"] for p in world.api.get(path).json()] == [ident]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (None, "missing authorization header"),
        ("Basic abc", "invalid authorization format"),
        ("Bearer mul_wrong", "invalid token"),
        ("Bearer mat_wrong", "invalid token"),
    ],
)
def test_without_a_valid_token_nothing_is_answered(world: World, header: str | None, text: str) -> None:
    client = Client(headers={"Authorization": header} if header else None)
    for path in ("issues", "agents", f"workspaces/{world.workspace.id}", f"issues/{world.issue().id}/comments"):
        answer = client.get(f"/api/{path}")
        assert (answer.status_code, answer.json()["error"]) == (401, text)


def test_a_session_of_the_admin_may_read_and_needs_csrf_to_write(world: World) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.owner)
    assert client.get("/api/issues").status_code == 200
    refused = client.post("/api/issues", data={"title": "x"}, content_type="application/json")
    assert refused.status_code == 403


def test_the_schema_describes_the_routes(settings: Any) -> None:
    import yaml

    answer = Client().get("/api/schema/")
    assert answer.status_code == 200
    schema = yaml.safe_load(answer.content)
    assert {"/api/issues", "/api/issues/{ref}", "/api/tasks/{task_id}/cancel", "/api/agents"} <= set(schema["paths"])
    assert "title" in schema["components"]["schemas"]["NewIssue"]["required"]


def test_the_schema_has_no_warnings() -> None:
    from drf_spectacular.drainage import GENERATOR_STATS, reset_generator_stats
    from drf_spectacular.generators import SchemaGenerator
    from drf_spectacular.validation import validate_schema

    from queue_app.api.work.urls import described

    reset_generator_stats()
    schema = SchemaGenerator(patterns=described).get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    validate_schema(schema)  # type: ignore[no-untyped-call]
    assert not GENERATOR_STATS, GENERATOR_STATS
