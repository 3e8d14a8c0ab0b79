"""The commit point of a delivery: preparation is over, the agent may be launched."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from queue_app import events, transitions
from queue_app.auth import Caller
from queue_app.domain.states import PREPARING, WAITING, Status
from queue_app.models import AgentTask
from queue_app.services import agent_status, late_writes, settle
from queue_app.services.access import task_of

_ESCALATION_ENDS_FROM = sorted(WAITING | PREPARING)


def start(caller: Caller, task_id: UUID | None, *, claim_token: UUID | None) -> AgentTask:
    """Move a delivery to `running`, once, and drop the escalations that waited for it not to start.

    A repeat with the right token answers the running row. Without a token a repeat is believed only while the row was
    delivered once: after a redelivery nobody can tell whose start it is. Raises StartClaimRejectedError for a delivery
    that is over, TaskEndedError after the end, TaskNotFoundError, NotFoundError.
    """
    task = task_of(caller, task_id)
    with transaction.atomic():
        moved = transitions.start(task.pk, claim_token=claim_token, actor=f"daemon:{task.runtime_id}")
        if moved is not None:
            _drop_escalations(moved)
            events.announce("start", [moved], wakes=False)
            agent_status.refresh([moved.agent_id])
    return moved if moved is not None else _repeated(caller, task.pk, claim_token)


def _drop_escalations(task: AgentTask) -> None:
    waiting = AgentTask.objects.filter(escalation_for_task_id=task.pk, status__in=_ESCALATION_ENDS_FROM)
    ids = list(waiting.order_by("id").values_list("pk", flat=True))
    if ids:
        reason = "the task that it escalates has started"
        dropped = transitions.cancel(ids, actor="server", reason=reason, only=_ESCALATION_ENDS_FROM)
        settle.ended(dropped, "cancel")


def _repeated(caller: Caller, task_id: UUID, claim_token: UUID | None) -> AgentTask:
    now = AgentTask.objects.filter(pk=task_id).first()
    if now is not None and now.status == Status.RUNNING:
        if claim_token == now.claim_token or (claim_token is None and now.deliveries <= 1):
            return now
        if claim_token is None:
            raise late_writes.rejected_start(now, caller)
    raise late_writes.refusal(task_id, "start", caller, claim_token)
