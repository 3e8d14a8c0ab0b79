"""Rows for tests, made as the product makes them: real tables, real transitions."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone

from queue_app import transitions
from queue_app.models import Agent, AgentRuntime, AgentTask, Issue, Member, User, Workspace

_numbers = itertools.count(1)


def make_user(**fields: Any) -> User:
    name = fields.pop("username", f"user-{uuid4().hex[:12]}")
    return User.objects.create(username=name, email=f"{name}@example.test", **fields)


def make_workspace(owner: User | None = None, **fields: Any) -> Workspace:
    """A workspace with one owner."""
    slug = f"ws-{uuid4().hex[:12]}"
    workspace = Workspace.objects.create(name=fields.pop("name", slug), slug=slug, **fields)
    Member.objects.create(workspace=workspace, user=owner or make_user(), role=Member.Role.OWNER)
    return workspace


def owner_of(workspace: Workspace) -> User:
    return Member.objects.get(workspace=workspace, role=Member.Role.OWNER).user


def make_runtime(workspace: Workspace, **fields: Any) -> AgentRuntime:
    """An online runtime that was heard just now."""
    now = timezone.now()
    values: dict[str, Any] = {
        "daemon_id": uuid4().hex,
        "name": "Plain (test)",
        "provider": "plain",
        "status": "online",
        "last_seen_at": now,
        "fresh_since": now - timedelta(hours=1),
        "owner": owner_of(workspace),
    }
    return AgentRuntime.objects.create(workspace=workspace, **{**values, **fields})


def make_agent(runtime: AgentRuntime, **fields: Any) -> Agent:
    values: dict[str, Any] = {"name": f"agent-{uuid4().hex[:12]}", "owner": runtime.owner}
    return Agent.objects.create(workspace=runtime.workspace, runtime=runtime, **{**values, **fields})


def make_issue(workspace: Workspace, **fields: Any) -> Issue:
    values: dict[str, Any] = {"title": "An issue", "number": next(_numbers)}
    return Issue.objects.create(workspace=workspace, **{**values, **fields})


def task_values(agent: Agent, issue: Issue | None = None, **fields: Any) -> dict[str, Any]:
    """Columns of a task as an enqueue would give them; without an issue it is a quick-create without a key."""
    values: dict[str, Any] = {
        "workspace_id": agent.workspace_id,
        "agent_id": agent.id,
        "runtime_id": agent.runtime_id,
        "kind": "issue" if issue else "quick_create",
        "issue_id": issue.id if issue else None,
        "serial_key": f"issue:{issue.id}" if issue else None,
    }
    return {**values, **fields}


def enqueue(agent: Agent, issue: Issue | None = None, **fields: Any) -> AgentTask:
    """One task, through the enqueue transition."""
    (task,) = transitions.enqueue([task_values(agent, issue, **fields)], actor="user:test")
    return task
