"""An operator who is logged in, and a queue with one task in every state."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from queue_app import transitions
from queue_app.models import Agent, AgentTask, User
from tests.support import factories

TOKEN = uuid4()


def operator(**fields: Any) -> User:
    values = {"username": f"op-{uuid4().hex[:8]}", "is_staff": True, "is_superuser": True}
    return User.objects.create(**{**values, **fields})


@pytest.fixture
def client() -> Client:
    """A logged-in superuser without a workspace of their own."""
    client = Client()
    client.force_login(operator())
    return client


@pytest.fixture
def agent() -> Agent:
    return factories.make_agent(factories.make_runtime(factories.make_workspace()))


def put_in_state(task: AgentTask, status: str) -> AgentTask:
    """Bring a queued task to a status through the verbs, its delivery made as the claim makes it."""
    if status == "queued":
        return task
    if status == "cancelled":
        transitions.cancel([task.id], actor="user:test")
    else:
        _deliver(task)
        _advance(task, status)
    task.refresh_from_db()
    assert task.status == status
    return task


def _deliver(task: AgentTask) -> None:
    from queue_app import auth
    from queue_app.services import claim

    assert task.runtime is not None
    caller = auth.for_user(factories.owner_of(task.workspace))
    found = claim.claim(
        caller, daemon_id=task.runtime.daemon_id, runtime_ids=[str(task.runtime_id)], max_tasks=1, timeout_ms=None
    )
    assert [row["id"] for row in found] == [str(task.id)]
    task.refresh_from_db()


def _advance(task: AgentTask, status: str) -> None:
    fence: dict[str, Any] = {"claim_token": task.claim_token, "actor": "daemon:test"}
    if status == "dispatched":
        return
    if status == "waiting_local_directory":
        transitions.park(task.id, wait_reason="in use", **fence)
        return
    transitions.start(task.id, **fence)
    if status == "completed":
        transitions.complete(task.id, result={"output": "done"}, report=transitions.Report(), **fence)
    elif status == "failed":
        transitions.fail(task.id, reason="agent_error.process_failure", error="boom", **fence)


def aged(task: AgentTask, **seconds: float) -> None:
    """Move times of a runtime or agent into the past; the queue row itself is never edited."""
    now = timezone.now()
    runtime = task.runtime
    assert runtime is not None
    for name, value in seconds.items():
        setattr(runtime, name, now - timedelta(seconds=value))
    runtime.save()
