"""A daemon reports that a run failed."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from queue_app import transitions
from queue_app.auth import Caller
from queue_app.domain import failure_reasons
from queue_app.domain.redaction import clean, clean_fields
from queue_app.domain.retry_policy import No
from queue_app.domain.states import Status
from queue_app.errors import StaleClaimError, StartClaimRejectedError
from queue_app.models import Agent, AgentTask
from queue_app.services import access, late_ends, late_writes, promote, retry, settle
from queue_app.services.issue_lock import lock_issue
from queue_app.transitions import Report


def fail(
    caller: Caller,
    task_id: UUID | None,
    *,
    claim_token: UUID | None,
    error: str,
    failure_reason: str | None = None,
    report: Report | None = None,
) -> AgentTask:
    """End an active task as failed, with its retry in the same transaction; returns the row as it is then.

    `failure_reason` may be empty or unfamiliar: what is stored is always of the closed list. Repeats are harmless and
    give the row back; a report that comes after another end is kept beside the row. Raises TaskNotFoundError,
    NotFoundError, StaleClaimError (another delivery owns the task) and ConflictError (nothing runs that could fail).
    """
    task = access.task_of(caller, task_id)
    error, report = clean(error), Report(**clean_fields(report or Report()))
    reason = failure_reasons.normalise(failure_reason, error)
    payload = {"error": error, "failure_reason": failure_reason or "", **_told(report)}
    if claim_token is None and _refused_start(task, error):
        late_writes.record(task, "fail", StaleClaimError.code, caller, None, payload)
        raise StaleClaimError("stale_claim: this delivery's start was refused, so its end is not the task's")
    with transaction.atomic():
        row = _end(task, claim_token, reason, error, report, caller.actor)
    return row or late_ends.answer(task.id, "fail", caller, claim_token, payload)


def _end(
    task: AgentTask, claim_token: UUID | None, reason: str, error: str, report: Report, actor: str
) -> AgentTask | None:
    lock_issue(task.issue_id)
    opted_in = Agent.objects.filter(id=task.agent_id, retry_rate_limits=True).exists()
    decision = retry.decide(task, reason, error, retry_rate_limits=opted_in)
    row = transitions.fail(
        task.id,
        claim_token=claim_token,
        reason=reason,
        error=error,
        report=report,
        not_retried_because=decision.because if isinstance(decision, No) else None,
        actor=actor,
    )
    if row is not None:
        settle.failures([row], "fail")
        promote.followers([row])
    return row


def end_unbuildable(task_id: UUID, *, claim_token: UUID, reason: str, error: str) -> AgentTask | None:
    """End a delivery whose answer can never be built, by a written rule; None if it is no longer this delivery's."""
    task = AgentTask.objects.filter(id=task_id).first()
    if task is None:
        return None
    with transaction.atomic():
        return _end(task, claim_token, failure_reasons.normalise(reason, error), clean(error), Report(), "server")


def _refused_start(task: AgentTask, error: str) -> bool:
    """Whether a report without a token comes from a delivery whose start we refused: the running one is another's.

    Daemons without tokens report a refused start as a failure of the task and quote what we answered.
    """
    return task.status == Status.RUNNING and task.deliveries > 1 and StartClaimRejectedError.code in error


def _told(report: Report) -> dict[str, object]:
    return {name: value for name, value in vars(report).items() if value}
