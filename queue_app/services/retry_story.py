"""What the queue decided after a failure, told from the rows themselves: rule, attempts, conversation, next attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from queue_app.domain import failure_reasons, retry_policy, sessions
from queue_app.domain.states import Status
from queue_app.models import AgentTask


@dataclass(frozen=True)
class RetryStory:
    """The decision on one failed attempt. `next_*` are null without a next attempt; `text` says it all in a sentence.

    `conversation` is `poisoned` if nothing may resume this attempt's session, else `usable`.
    """

    rule: str
    attempt: int
    max_attempts: int
    conversation: str
    next_task_id: UUID | None
    next_at: datetime | None
    text: str


def of(task: AgentTask) -> RetryStory | None:
    """The story of a failed task, None for any other; one statement."""
    if task.status != Status.FAILED or not task.failure_reason:
        return None
    child = AgentTask.objects.filter(retry_of_task_id=task.id).only("id", "fire_at", "created_at", "status").first()
    reason = failure_reasons.of(task.failure_reason)
    most = retry_policy.ceiling(reason.code, task.max_attempts)
    poisoned = sessions.poisoned(task.failure_reason, task.error)
    at = None if child is None else child.fire_at or child.created_at
    if at is None:
        text = task.not_retried_because or "no, because no next attempt was recorded"
    else:
        how = "with a new conversation" if poisoned else "with the same conversation if it can go on"
        text = (
            f"yes: {reason.code} is retried {reason.retry}; attempt {task.attempt} of {most} is used, "
            f"the next runs from {at:%Y-%m-%d %H:%M:%S}Z on, {how}"
        )
    conversation = "poisoned" if poisoned else "usable"
    next_id = None if child is None else child.id
    return RetryStory(str(reason.retry), task.attempt, most, conversation, next_id, at, text)
