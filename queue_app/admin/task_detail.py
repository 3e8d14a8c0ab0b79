"""Everything that belongs to one task, for its page: events, transcript, usage, late writes, chain, what holds it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db.models import Q
from django.utils import timezone

from queue_app.domain import failure_reasons
from queue_app.models import (
    AgentTask,
    AuditEntry,
    ClaimDecision,
    LateWrite,
    TaskEvent,
    TaskMessage,
    TaskToken,
    TaskUsage,
)
from queue_app.services import retry_story, waiting

EVENTS, MESSAGES, OTHERS = 500, 200, 100


def detail_of(object_id: str) -> dict[str, Any]:
    """The context of a task's page; empty for an id that names nothing, so that the page itself answers 404."""
    try:
        task = AgentTask.objects.filter(id=UUID(object_id)).first()
    except (ValueError, ValidationError):
        task = None
    if task is None:
        return {}
    messages = list(TaskMessage.objects.filter(task=task).order_by("-seq")[:MESSAGES])
    return {
        "task": task,
        "holding": waiting.of(task.id),
        "retry": retry_story.of(task),
        "hint": failure_reasons.of(task.failure_reason).hint if task.failure_reason else "",
        "task_events": TaskEvent.objects.filter(task=task).order_by("seq")[:EVENTS],
        "task_messages": messages[::-1],
        "older_messages": bool(messages) and messages[-1].seq > 1 and len(messages) == MESSAGES,
        "usages": TaskUsage.objects.filter(task=task).order_by("created_at")[:OTHERS],
        "late_writes": LateWrite.objects.filter(task=task).order_by("created_at")[:OTHERS],
        "decisions": ClaimDecision.objects.filter(task_id=task.id).order_by("-last_at")[:OTHERS],
        "audit": AuditEntry.objects.filter(object_id=task.id).order_by("created_at")[:OTHERS],
        "chain": _chain(task),
        "token": _token(task),
    }


def _chain(task: AgentTask) -> list[AgentTask]:
    """All attempts at the same work that are linked with this one, in order; two statements whatever the length."""
    if task.issue_id is not None:
        rows = AgentTask.objects.filter(issue_id=task.issue_id, agent_id=task.agent_id)
    else:
        ids = [ident for ident in (task.parent_task_id, task.retry_of_task_id, task.rerun_of_task_id) if ident]
        rows = AgentTask.objects.filter(Q(id__in=[task.id, *ids]) | Q(parent_task_id=task.id))
    return list(rows.order_by("created_at", "id")[:OTHERS])


def _token(task: AgentTask) -> str:
    """The state of the task's own credential; neither the secret nor its hash is ever shown."""
    row = TaskToken.objects.filter(task=task).order_by("-expires_at").only("expires_at", "revoked_at").first()
    if row is None:
        return "none"
    if row.revoked_at is not None:
        return f"revoked at {row.revoked_at:%Y-%m-%d %H:%M:%S}Z"
    state = "valid until" if row.expires_at > timezone.now() else "expired at"
    return f"{state} {row.expires_at:%Y-%m-%d %H:%M:%S}Z"
