"""A delivery waits for a local directory that another run holds."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from queue_app import events, transitions
from queue_app.auth import Caller
from queue_app.domain.states import Status
from queue_app.models import AgentTask
from queue_app.services import agent_status, late_writes
from queue_app.services.access import task_of

REASON_LIMIT = 2000


def park(caller: Caller, task_id: UUID | None, *, claim_token: UUID | None, reason: str) -> AgentTask:
    """Move a dispatched delivery to `waiting_local_directory` with a fresh lease; a repeat answers the waiting row.

    Raises StaleClaimError, TaskEndedError, ConflictError (it runs already), TaskNotFoundError, NotFoundError.
    """
    task = task_of(caller, task_id)
    with transaction.atomic():
        moved = transitions.park(
            task.pk, claim_token=claim_token, wait_reason=reason[:REASON_LIMIT], actor=f"daemon:{task.runtime_id}"
        )
        if moved is not None:
            events.announce("park", [moved], wakes=False)
            agent_status.refresh([moved.agent_id])
            return moved
    again = AgentTask.objects.filter(pk=task.pk, status=Status.WAITING_LOCAL_DIRECTORY).first()
    if again is not None and not late_writes.is_stale(again, claim_token):
        return again
    raise late_writes.refusal(task.pk, "park", caller, claim_token, {"reason": reason})
