"""A daemon's machine for tests inside the process: its calls over Django's client, and its tasks in any state."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from django.db import connection
from django.test import Client

from queue_app import transitions
from queue_app.auth import for_user
from queue_app.domain.states import Status
from queue_app.models import Agent, AgentRuntime, AgentTask, LateWrite, User, Workspace
from queue_app.services import claim as claim_service
from queue_app.services import tokens
from tests.support import factories


@dataclass
class Machine:
    """One workspace, its owner's token, one online runtime and one agent on it."""

    workspace: Workspace
    user: User
    secret: str
    runtime: AgentRuntime
    agent: Agent
    client: Client = field(default_factory=Client)

    @classmethod
    def make(cls, **agent_fields: Any) -> Machine:
        workspace = factories.make_workspace()
        user = factories.owner_of(workspace)
        secret, _ = tokens.create(user, name="test")
        runtime = factories.make_runtime(workspace)
        return cls(workspace, user, secret, runtime, factories.make_agent(runtime, **agent_fields))

    # -- calls --

    def request(self, method: str, path: str, body: Any = None, *, secret: str | None = "", **headers: str) -> Any:
        """One request; `body` bytes go as they are. `secret` None sends no credential."""
        if secret is not None:
            headers["authorization"] = f"Bearer {secret or self.secret}"
        data = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        if method == "GET":
            return self.client.get(path, headers=headers)
        return self.client.generic(method, path, data, content_type="application/json", headers=headers)

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        return self.request("POST", f"/api/daemon/{path}", body, **options)

    def get(self, path: str, **options: Any) -> Any:
        return self.request("GET", f"/api/daemon/{path}", **options)

    # -- tasks --

    def queued(self, **fields: Any) -> AgentTask:
        return factories.enqueue(self.agent, factories.make_issue(self.workspace), **fields)

    def claimed(self, task: AgentTask | None = None) -> AgentTask:
        """A dispatched task, by the claim itself."""
        task = task or self.queued()
        answer = claim_service.claim(
            for_user(self.user),
            daemon_id=self.runtime.daemon_id,
            runtime_ids=[str(self.runtime.pk)],
            max_tasks=1,
            timeout_ms=5000,
            door="http",
        )
        assert [item["id"] for item in answer] == [str(task.pk)]
        return fresh(task)

    def in_state(self, status: str) -> AgentTask:
        """A task that came to `status` by lawful steps."""
        if status == Status.QUEUED:
            return self.queued()
        if status == Status.DEFERRED:
            return self.queued(status="deferred", fire_at="2999-01-01T00:00:00Z")
        task = self.claimed()
        token = task.claim_token
        if status == Status.WAITING_LOCAL_DIRECTORY:
            transitions.park(task.pk, claim_token=token, wait_reason="busy", actor="test")
        elif status != Status.DISPATCHED:
            transitions.start(task.pk, claim_token=token, actor="test")
        report = transitions.Report()
        if status == Status.COMPLETED:
            transitions.complete(task.pk, claim_token=token, result={"output": "x"}, report=report, actor="test")
        elif status == Status.FAILED:
            transitions.fail(task.pk, claim_token=token, reason="agent_error.unknown", error="x", actor="test")
        elif status == Status.CANCELLED:
            transitions.cancel([task.pk], actor="test")
        found = fresh(task)
        assert found.status == status
        return found


def fresh(task: AgentTask) -> AgentTask:
    return AgentTask.objects.get(pk=task.pk)


def row_text(task_id: UUID) -> str:
    """Every column of the queue row as the database writes it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT t::text, t.xmin::text FROM agent_task_queue t WHERE id = %s", [task_id])
        return str(cursor.fetchone())


def ledger(task_id: UUID) -> list[tuple[str, str]]:
    """(verb, code) of the refused calls of a task, oldest first."""
    return list(LateWrite.objects.filter(task_id=task_id).order_by("id").values_list("verb", "code"))


def stranger_token() -> str:
    """A claim token that no row has."""
    return str(uuid4())
