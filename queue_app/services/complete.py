"""A daemon reports the result of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

from django.db import transaction

from queue_app import transitions
from queue_app.auth import Caller
from queue_app.domain import failure_reasons
from queue_app.domain.redaction import clean_fields, clean_json
from queue_app.models import AgentTask
from queue_app.services import access, fail, follow_up, late_ends, promote, settle
from queue_app.services.issue_lock import lock_issue
from queue_app.transitions import Report

_CONTEXT_NOTICE = re.compile(
    r"\s*(?:error: )?(?:prompt is too long|context (?:window|length) (?:is )?(?:exceeded|exhausted|full))"
    r"[.!]?\s*(?:[·-]\s*.{0,80})?\s*",
    re.IGNORECASE,
)


def complete(
    caller: Caller,
    task_id: UUID | None,
    *,
    claim_token: UUID | None,
    result: Mapping[str, Any],
    report: Report | None = None,
) -> AgentTask:
    """Store the result of a running task and start what was asked for meanwhile; returns the row as it is then.

    `result` is the body that the daemon sent; its `output` is what the agent said last. Repeats are harmless and give
    the row back; a result that comes after another end is kept beside the row and changes nothing. A bare notice that
    the context is full is no result: the task fails as that. Raises TaskNotFoundError, NotFoundError, StaleClaimError
    and ConflictError.
    """
    task = access.task_of(caller, task_id)
    body = cast(dict[str, Any], clean_json(dict(result)))
    report = Report(**clean_fields(report or Report()))
    output = body.get("output")
    if isinstance(output, str) and _CONTEXT_NOTICE.fullmatch(output):
        reason = failure_reasons.CONTEXT_OVERFLOW
        return fail.fail(caller, task.id, claim_token=claim_token, error=output, failure_reason=reason, report=report)
    with transaction.atomic():
        row = _end(task, claim_token, body, report, caller.actor)
    return row or late_ends.answer(task.id, "complete", caller, claim_token, {"result": body})


def _end(
    task: AgentTask, claim_token: UUID | None, body: Mapping[str, Any], report: Report, actor: str
) -> AgentTask | None:
    lock_issue(task.issue_id)
    row = transitions.complete(task.id, claim_token=claim_token, result=body, report=report, actor=actor)
    if row is not None:
        settle.ended([row], "complete")
        promote.followers([row])
        follow_up.after(row)
    return row
