"""The answer to a terminal report that moved nothing: refused, repeated, or too late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from queue_app.auth import Caller
from queue_app.domain.states import EDGES, TERMINAL
from queue_app.errors import TaskEndedError, TaskNotFoundError
from queue_app.models import AgentTask, LateWrite
from queue_app.services import late_writes


def answer(task_id: UUID, verb: str, caller: Caller, claim_token: UUID | None, payload: Mapping[str, Any]) -> AgentTask:
    """The row as it ended, for a report of its own delivery; what the report carried is kept beside it.

    A plain repeat leaves no trace. Raises StaleClaimError for another delivery's report and ConflictError for a row
    that has not come so far. Call it outside the transaction that found nothing to move.
    """
    task = AgentTask.objects.filter(pk=task_id).first()
    if task is None:
        raise TaskNotFoundError
    if task.status not in TERMINAL or late_writes.is_stale(task, claim_token):
        late_writes.refuse(task_id, verb, caller, claim_token, payload)
    if not _repeats(task, verb, claim_token, payload):
        late_writes.record(task, verb, TaskEndedError.code, caller, claim_token, payload)
    return task


def _repeats(task: AgentTask, verb: str, claim_token: UUID | None, payload: Mapping[str, Any]) -> bool:
    if task.status == EDGES[verb].target and _says(task, verb, payload):
        return True
    # A daemon repeats a report until it is answered: one entry for one report.
    return LateWrite.objects.filter(task_id=task.pk, verb=verb, claim_token=claim_token, payload=dict(payload)).exists()


def _says(task: AgentTask, verb: str, payload: Mapping[str, Any]) -> bool:
    if verb == "complete":
        return payload.get("result") == task.result
    return payload.get("error") == task.error
