"""Ends of issue work, told on the issue: the agent's words on success, the server's on a failure that stays.

Each is written in the transaction of its end, so there is one for an end, however many report it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from queue_app import events, hooks
from queue_app.domain import failure_reasons
from queue_app.domain.redaction import clean, redact
from queue_app.domain.states import Kind, Status
from queue_app.models import Agent, AgentTask, Comment, Issue, SquadVerdict

OUTPUT_LIMIT = 8000
ERROR_LIMIT = 2000
CUT = "\n\n(cut here; the task keeps the whole text)"
_BARE_REPLIES = frozenset({"done", "ok", "okay"})


@hooks.on_end(Kind.ISSUE)
@hooks.on_end(Kind.COMMENT)
def tell_issue(task: AgentTask, facts: dict[str, Any]) -> None:
    """Write what the end has to say on its issue, at most one comment."""
    if task.status == Status.COMPLETED:
        Issue.objects.filter(id=_issue_of(task), first_executed_at__isnull=True).update(first_executed_at=Now())
        _post_output(task)
    elif task.status == Status.FAILED and facts.get("retry") is None:
        _post_failure(task)


def _issue_of(task: AgentTask) -> UUID:
    # The schema gives every task of these kinds an issue.
    assert task.issue_id is not None
    return task.issue_id


def _post_output(task: AgentTask) -> None:
    output = (task.result or {}).get("output")
    text = clean(output).strip() if isinstance(output, str) else ""
    if not text or (task.kind == Kind.COMMENT and text.lower().rstrip(".!") in _BARE_REPLIES):
        return
    if _spoke_itself(task) or SquadVerdict.objects.filter(task_id=task.id, outcome="no_action").exists():
        return
    words = _bounded(redact(text), OUTPUT_LIMIT)
    _post(task, author_type="agent", author_id=task.agent_id, type="comment", content=words)


def _spoke_itself(task: AgentTask) -> bool:
    """Whether the agent commented on its issue during the run, so that its last output would only repeat it."""
    during = Q(source_task_id=task.id) | Q(author_id=task.agent_id, created_at__gte=task.started_at)
    return Comment.objects.filter(during, issue_id=_issue_of(task), author_type="agent", type="comment").exists()


def _post_failure(task: AgentTask) -> None:
    reason = failure_reasons.of(task.failure_reason)
    if not reason.comment:
        return
    name = Agent.objects.filter(id=task.agent_id).values_list("name", flat=True).first() or "The agent"
    error = _bounded(redact(clean(task.error or "")).strip(), ERROR_LIMIT)
    parts = [f"{name} did not finish: {reason.label}.", error and f"> {error}".replace("\n", "\n> "), reason.hint]
    text = "\n\n".join(part for part in parts if part)
    _post(task, author_type="system", author_id=None, type="system", content=text)


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit].rstrip() + CUT


def _post(task: AgentTask, **fields: Any) -> None:
    comment = Comment.objects.create(
        workspace_id=task.workspace_id,
        issue_id=_issue_of(task),
        parent_id=_thread_of(task),
        source_task_id=task.id,
        **fields,
    )
    payload = {"comment_id": str(comment.id), "issue_id": str(task.issue_id), "task_id": str(task.id)}
    transaction.on_commit(lambda: events.publish(task.workspace_id, "comment:created", payload))


def _thread_of(task: AgentTask) -> UUID | None:
    """The root of the thread in which the task was asked for, if it still exists."""
    if task.trigger_comment_id is None:
        return None
    trigger = Comment.objects.filter(id=task.trigger_comment_id, issue_id=_issue_of(task)).only("parent_id").first()
    return None if trigger is None else trigger.parent_id or trigger.id
