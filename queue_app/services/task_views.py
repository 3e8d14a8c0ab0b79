"""Tasks as people and agents of a workspace see them: one task, its transcript. Reads only."""

from __future__ import annotations

from uuid import UUID

from queue_app.errors import TaskNotFoundError
from queue_app.models import AgentTask, TaskMessage
from queue_app.services.scope import Scope

MESSAGES = 1000
"""Most messages in one answer; ask again with the last seq."""


def find(where: Scope, task_id: UUID) -> AgentTask:
    """A task of the scope with its agent, runtime, issue and progress, or TaskNotFoundError."""
    rows = AgentTask.objects.filter(id=task_id, workspace_id__in=where.workspace_ids)
    found = rows.select_related("agent", "runtime", "issue__workspace", "progress").first()
    if found is None:
        raise TaskNotFoundError()
    return found


def messages(where: Scope, task_id: UUID, *, since: int = 0, limit: int = MESSAGES) -> list[TaskMessage]:
    """The transcript in order of seq, those after `since` only."""
    task = find(where, task_id)
    return list(TaskMessage.objects.filter(task=task, seq__gt=since).order_by("seq")[:limit])
