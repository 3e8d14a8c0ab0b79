"""Keeping where a run could be resumed, as soon as the agent reveals it."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from queue_app import transitions
from queue_app.auth import Caller
from queue_app.errors import InvalidError, TaskNotFoundError
from queue_app.models import AgentTask
from queue_app.services import late_writes
from queue_app.services.access import task_of


def pin_session(
    caller: Caller, task_id: UUID | None, *, claim_token: UUID | None, session_id: str, work_dir: str
) -> AgentTask:
    """Write session and directory while the run is on, or into a cancelled row that has none; else change nothing.

    Raises StaleClaimError, InvalidError (neither is given), TaskNotFoundError, NotFoundError.
    """
    task = task_of(caller, task_id)
    if not session_id and not work_dir:
        raise InvalidError("session_id: give session_id or work_dir", field="session_id")
    with transaction.atomic():
        moved = transitions.pin_session(
            task.pk,
            claim_token=claim_token,
            session_id=session_id or None,
            work_dir=work_dir or None,
            actor=f"daemon:{task.runtime_id}",
        )
    if moved is not None:
        return moved
    now = AgentTask.objects.filter(pk=task.pk).first()
    if now is None:
        raise TaskNotFoundError
    late_writes.require_own(now, "pin_session", caller, claim_token, {"session_id": session_id, "work_dir": work_dir})
    return now
