"""Taking back deliveries whose answer will not reach anybody: put back by their own token, or ended by rule."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from queue_app import events, transitions
from queue_app.conf import conf
from queue_app.domain import failure_reasons
from queue_app.domain.states import Status
from queue_app.models import AgentTask, TaskToken
from queue_app.services import fail, settle


def put_back(task_id: UUID, claim_token: UUID, *, deliveries: int, reason: str) -> AgentTask | None:
    """Make a delivery undone: the row is queued again and its task token is dead.

    The delivery stays counted, so the last one that is allowed ends the task instead (`timeout`, with `reason` in its
    text) and a head that can never be answered does not spin. Nobody is woken. None if another hand moved the row.
    """
    if deliveries >= conf.MAX_DELIVERIES:
        text = f"given up after {deliveries} deliveries: {reason}"
        return fail.end_unbuildable(task_id, claim_token=claim_token, reason=failure_reasons.TIMEOUT, error=text)
    with transaction.atomic():
        row = transitions.requeue(task_id, claim_token=claim_token, reason=reason)
        TaskToken.objects.filter(claim_token=claim_token, revoked_at__isnull=True).update(revoked_at=Now())
        if row is not None:
            events.announce("requeue", [row], wakes=False)
    return row


def withdraw(task_id: UUID, claim_token: UUID, *, reason: str) -> AgentTask | None:
    """Cancel a delivery whose work has no point any more. Nobody was told of it, so no process has to be waited for."""
    with transaction.atomic():
        if transitions.requeue(task_id, claim_token=claim_token, reason=reason) is None:
            return None
        rows = transitions.cancel([task_id], actor="server", reason=reason, error=reason, only=[Status.QUEUED])
        settle.ended(rows, "cancel")
    return rows[0] if rows else None
