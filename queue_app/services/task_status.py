"""What daemons poll: whether their run should go on."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from queue_app.auth import Caller
from queue_app.domain.states import Status
from queue_app.models import AgentTask
from queue_app.services import late_writes
from queue_app.services.access import runtime_of, task_of


def task_status(caller: Caller, task_id: UUID | None, *, claim_token: UUID | None) -> str:
    """The status of the row. Raises StaleClaimError (the token is not the row's), TaskNotFoundError, NotFoundError."""
    task = task_of(caller, task_id)
    if claim_token is not None:
        late_writes.require_own(task, "status", caller, claim_token)
    return task.status


def pending(caller: Caller, runtime_id: UUID | None) -> list[dict[str, Any]]:
    """What waits for a runtime, in the order of a claim, at most 100. Raises RuntimeNotFoundError, NotFoundError."""
    runtime = runtime_of(caller, runtime_id)
    rows = AgentTask.objects.filter(runtime=runtime, status=Status.QUEUED).order_by("-priority", "created_at", "id")
    names = ("id", "agent_id", "issue_id", "status", "priority", "created_at")
    return list(rows.values(*names)[:100])
