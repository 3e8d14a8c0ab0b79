"""The daemon says that the process of an ended task is gone (`cancel-ack`)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction

from queue_app import events, transitions
from queue_app.auth import Caller
from queue_app.errors import StaleClaimError, TaskNotFoundError
from queue_app.models import AgentTask
from queue_app.services import late_writes
from queue_app.services.access import task_of


def confirm_stop(
    caller: Caller,
    task_id: UUID | None,
    *,
    claim_token: UUID | None,
    branch_name: str = "",
    durable_work_dir: str = "",
    error: str = "",
    failure_reason: str = "",
) -> AgentTask:
    """Note when the process stopped, let its key pass again, and keep what it flushed in fields that are empty.

    Texts are kept only on a cancelled row. A repeat, or a call about a task that is open, changes nothing. Raises
    StaleClaimError, TaskNotFoundError, NotFoundError.
    """
    task = task_of(caller, task_id)
    said: dict[str, Any] = {
        "branch_name": branch_name or None,
        "durable_work_dir": durable_work_dir or None,
        "error": error or None,
        "failure_reason": failure_reason or None,
    }
    with transaction.atomic():
        moved = transitions.confirm_stop(task.pk, claim_token=claim_token, actor=f"daemon:{task.runtime_id}", **said)
        if moved is not None:
            events.announce("confirm_stop", [moved])
            return moved
    now = AgentTask.objects.filter(pk=task.pk).first()
    if now is None:
        raise TaskNotFoundError
    if claim_token is not None and claim_token != now.claim_token:
        late_writes.record(now, "confirm_stop", StaleClaimError.code, caller, claim_token, said)
        raise StaleClaimError(late_writes.text_of(StaleClaimError, now))
    return now
