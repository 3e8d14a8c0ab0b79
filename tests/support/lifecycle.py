"""Brings a task to where a test needs it, by the product's own transitions."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django.db import connection
from django.utils import timezone

from queue_app import auth, transitions
from queue_app.auth import Caller
from queue_app.models import Agent, AgentRuntime, AgentTask, Issue, Workspace
from queue_app.sql.claim import CALL
from queue_app.transitions import Report
from tests.support import factories

DAEMON = "daemon:test"


class Site:
    """A workspace with one machine, one agent and one issue that is assigned to it."""

    def __init__(self, **agent: Any) -> None:
        self.workspace: Workspace = factories.make_workspace()
        self.owner = factories.owner_of(self.workspace)
        self.runtime: AgentRuntime = factories.make_runtime(self.workspace)
        self.agent: Agent = factories.make_agent(self.runtime, **agent)
        self.issue: Issue = self.more_issue()
        self.caller: Caller = auth.for_user(self.owner)

    def more_issue(self, **fields: Any) -> Issue:
        values = {"assignee_type": "agent", "assignee_id": self.agent.id, **fields}
        return factories.make_issue(self.workspace, **values)

    def queued(self, **fields: Any) -> AgentTask:
        """A queued task of the issue, with people as an enqueue would name them."""
        people = {"originator_user_id": self.owner.id, "accountable_user_id": self.owner.id}
        return factories.enqueue(self.agent, fields.pop("issue", self.issue), **{**people, **fields})

    def running(self, **fields: Any) -> AgentTask:
        return start(dispatch(self.queued(**fields)))

    def silent(self, seconds: float, *, status: str = "offline") -> None:
        """The machine was last heard so long ago."""
        heard = timezone.now() - timedelta(seconds=seconds)
        AgentRuntime.objects.filter(id=self.runtime.id).update(last_seen_at=heard, status=status)


def dispatch(task: AgentTask, *, now: datetime | None = None) -> AgentTask:
    """Claim this task, which must be the one that its runtime's next claim gives."""
    values = {
        "runtimes": [task.runtime_id],
        "daemon": None,
        "workspaces": [task.workspace_id],
        "max": 1,
        "hashes": [uuid4().hex],
        "freshness": 10**9,
        "recovery": 90,
        "lease": 45,
        "token_ttl": 86400,
        "max_deliveries": 5,
        "one_by_one": False,
        "now": now,
    }
    with connection.cursor() as cursor:
        cursor.execute(CALL, values)
    row = AgentTask.objects.get(id=task.id)
    assert row.status == "dispatched", "another task was claimed"
    return row


def start(task: AgentTask, *, now: datetime | None = None) -> AgentTask:
    row = transitions.start(task.id, claim_token=task.claim_token, actor=DAEMON, now=now)
    assert row is not None
    return row


def park(task: AgentTask, *, now: datetime | None = None) -> AgentTask:
    row = transitions.park(task.id, claim_token=task.claim_token, wait_reason="busy", actor=DAEMON, now=now)
    assert row is not None
    return row


def renew(task: AgentTask, *, now: datetime | None = None) -> AgentTask:
    row = transitions.renew_lease(
        task.id, runtime_id=task.runtime_id or uuid4(), claim_token=task.claim_token, actor=DAEMON, now=now
    )
    assert row is not None
    return row


def failed(task: AgentTask, reason: str = "agent_error.process_failure", **fields: Any) -> AgentTask:
    """Ended by the bare transition, without what the service does beside it."""
    row = transitions.fail(
        task.id,
        claim_token=task.claim_token,
        reason=reason,
        error=fields.pop("error", "it broke"),
        report=Report(**fields),
        actor=DAEMON,
    )
    assert row is not None
    return row


def row_of(task: AgentTask) -> str:
    """The whole row as text, with the version that PostgreSQL gives every write: equal only if nothing wrote it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT q.xmin::text || q::text FROM agent_task_queue q WHERE id = %s", [task.id])
        return str(cursor.fetchone()[0])
