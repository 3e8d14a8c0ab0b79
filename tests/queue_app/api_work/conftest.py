"""A workspace with an agent, and callers of every kind for the issue API."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from queue_app import auth
from queue_app.models import Agent, AgentRuntime, AgentTask, Issue, PersonalAccessToken, TaskToken, User, Workspace
from queue_app.services import claim
from tests.support import factories


@dataclass
class Api:
    """One caller: JSON in and out over the real routes."""

    token: str = ""
    headers: dict[str, str] | None = None

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        headers = {**({"Authorization": f"Bearer {self.token}"} if self.token else {}), **(self.headers or {})}
        options: dict[str, Any] = {"headers": headers}
        if query:
            options["query_params"] = query
        if method != "GET":
            options |= {"data": json.dumps(body), "content_type": "application/json"}
        return getattr(Client(), method.lower())(f"/api/{path}", **options)

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, **query)

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, body)

    def put(self, path: str, body: Any) -> Any:
        return self.call("PUT", path, body)

    def patch(self, path: str, body: Any) -> Any:
        return self.call("PATCH", path, body)

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)


@dataclass
class World:
    """A workspace, its owner, one online runtime and one agent."""

    workspace: Workspace
    owner: User
    runtime: AgentRuntime
    agent: Agent
    api: Api

    def issue(self, **fields: Any) -> Issue:
        made = self.api.post("issues", {"title": f"Issue {uuid4().hex[:8]}", **fields})
        assert made.status_code == 201, made.content
        return Issue.objects.get(id=made.json()["id"])

    def tasks(self, issue: Issue) -> list[AgentTask]:
        return list(AgentTask.objects.filter(issue=issue).order_by("created_at", "id"))

    def agent_api(self, task: AgentTask) -> Api:
        return Api(task_token(task))


def person_token(user: User, workspace: Workspace | None = None) -> str:
    secret, hashed = auth.mint("mul_")
    PersonalAccessToken.objects.create(token_hash=hashed, token_prefix=secret[:8], user=user, workspace=workspace)
    return secret


def make_world() -> World:
    workspace = factories.make_workspace()
    runtime = factories.make_runtime(workspace)
    owner = factories.owner_of(workspace)
    return World(workspace, owner, runtime, factories.make_agent(runtime), Api(person_token(owner)))


def dispatch(task: AgentTask) -> AgentTask:
    """Claim a task as its daemon would."""
    assert task.runtime is not None
    caller = auth.for_user(factories.owner_of(task.workspace))
    found = claim.claim(
        caller,
        daemon_id=task.runtime.daemon_id,
        runtime_ids=[str(task.runtime_id)],
        max_tasks=1,
        timeout_ms=None,
        door="http",
    )
    assert [row["id"] for row in found] == [str(task.id)]
    task.refresh_from_db()
    return task


def task_token(task: AgentTask) -> str:
    """A live task token of a task, which is dispatched for it if it is still waiting."""
    if task.claim_token is None:
        dispatch(task)
    assert task.claim_token is not None
    assert task.agent.owner is not None
    secret, hashed = auth.mint("mat_")
    TaskToken.objects.create(
        token_hash=hashed,
        task=task,
        claim_token=task.claim_token,
        agent=task.agent,
        workspace=task.workspace,
        user=task.agent.owner,
        expires_at=timezone.now() + timedelta(hours=1),
    )
    return secret


def event_count(task_id: UUID) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM task_event WHERE task_id = %s", [task_id])
        return int(cursor.fetchone()[0])


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def other() -> World:
    """Another workspace with nobody in common."""
    return make_world()
