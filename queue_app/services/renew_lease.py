"""A daemon that prepares a delivery says that it is still at it."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from queue_app import transitions
from queue_app.auth import Caller
from queue_app.errors import NotFoundError
from queue_app.models import AgentTask
from queue_app.services import late_writes
from queue_app.services.access import OUT_OF_REACH, runtime_of, task_of


def renew_lease(
    caller: Caller, runtime_id: UUID | None, task_id: UUID | None, *, claim_token: UUID | None
) -> AgentTask:
    """Extend the prepare lease to now + `PREPARE_LEASE` seconds.

    Raises StaleClaimError, TaskEndedError, ConflictError (it runs already), TaskNotFoundError, NotFoundError (also for
    a runtime that the task is not on), RuntimeNotFoundError.
    """
    task = task_of(caller, task_id)
    if runtime_id is None or task.runtime_id != runtime_id:
        runtime_of(caller, runtime_id)
        raise NotFoundError(OUT_OF_REACH)
    with transaction.atomic():
        moved = transitions.renew_lease(
            task.pk, runtime_id=runtime_id, claim_token=claim_token, actor=f"daemon:{task.runtime_id}"
        )
    if moved is None:
        raise late_writes.refusal(task.pk, "renew_lease", caller, claim_token)
    return moved
