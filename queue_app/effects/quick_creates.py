"""The end of a quick-create, told to the person who asked: where the issue is, or why there is none."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from queue_app import events, hooks
from queue_app.domain import failure_reasons
from queue_app.domain.redaction import clean, redact
from queue_app.domain.states import Kind, Status
from queue_app.models import AgentTask, InboxItem, Issue, Member

DETAIL_LIMIT = 2000


@hooks.on_end(Kind.QUICK_CREATE)
def tell_requester(task: AgentTask, facts: dict[str, Any]) -> None:
    """Write one inbox item for an end that the requester did not bring about, and none for a cancellation.

    The issue is found by its origin, also when the run failed after it had been made.
    """
    user_id = task.context.get("requester_id")
    if task.status == Status.CANCELLED or not user_id:
        return
    if not Member.objects.filter(workspace_id=task.workspace_id, user_id=user_id).exists():
        return
    made = Issue.objects.filter(workspace_id=task.workspace_id, origin_type="quick_create", origin_id=task.id)
    issue = made.select_related("workspace").order_by("created_at", "id").first()
    item, new = InboxItem.objects.get_or_create(
        user_id=user_id,
        task_id=task.id,
        type="quick_create_failed" if issue is None else "quick_create_done",
        defaults={
            "workspace_id": task.workspace_id,
            "issue": issue,
            "title": "No issue was made" if issue is None else f"{issue.identifier}: {issue.title}",
            "body": _detail(task) if issue is None else "",
        },
    )
    if new:
        payload = {"item_id": str(item.id), "user_id": str(user_id), "type": item.type}
        transaction.on_commit(lambda: events.publish(task.workspace_id, "inbox:new", payload))


def _detail(task: AgentTask) -> str:
    if task.status == Status.FAILED:
        reason = failure_reasons.of(task.failure_reason)
        said = task.error or ""
        head = f"{reason.label}. {reason.hint}".strip()
    else:
        output = (task.result or {}).get("output")
        said = output if isinstance(output, str) else ""
        head = "The agent ended without making an issue."
    words = redact(clean(said)).strip()[:DETAIL_LIMIT]
    asked = str(task.context.get("prompt") or "")[:DETAIL_LIMIT]
    return "\n\n".join(part for part in (head, words, f"You asked for: {asked}") if part)
