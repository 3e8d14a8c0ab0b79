"""Stopping work: the row ends at once, the process is told, and what follows waits until it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from queue_app import transitions
from queue_app.domain.redaction import clean
from queue_app.domain.states import OPEN, WAITING, Status
from queue_app.models import Agent, AgentTask, AuditEntry, Issue
from queue_app.services import access, promote, settle
from queue_app.services.issue_lock import share_issues

if TYPE_CHECKING:
    from queue_app.auth import Caller


def cancel_task(caller: Caller, task_id: UUID | None, note: str = "") -> AgentTask:
    """Cancel one task, at once; one that has ended is given back unchanged.

    The row keeps `stop_pending_since` until its daemon says that the process is gone (`stopped_at`). A person's act is
    audited with its note. Raises TaskNotFoundError and NotFoundError.
    """
    task = access.task_of(caller, task_id)
    note = clean(note)
    with transaction.atomic():
        rows = transitions.cancel([task.id], actor=caller.actor, reason=note or None)
        _settle(rows)
        if rows and caller.kind == "user":
            AuditEntry.objects.create(
                workspace_id=task.workspace_id,
                actor_id=caller.user.id,
                actor=caller.actor,
                verb="cancel",
                object_type="task",
                object_id=task.id,
                note=note,
            )
    return rows[0] if rows else AgentTask.objects.get(id=task.id)


def cancel_for_issue(issue: Issue, *, caller: Caller | str, reason: str | None = "issue deleted") -> list[AgentTask]:
    """Cancel everything open of an issue (it is about to go)."""
    return _cancel(_open_of(issue.id, None, OPEN), caller, reason)


def cancel_waiting(issue: Issue, agent: Agent | UUID | None, *, caller: Caller | str) -> list[AgentTask]:
    """Cancel what an agent has queued or deferred for an issue: it was given to someone else. What runs goes on."""
    agent_id = agent.id if isinstance(agent, Agent) else agent
    if agent_id is None:
        return []
    return _cancel(_open_of(issue.id, agent_id, WAITING), caller, "reassigned", only=sorted(WAITING))


def cancel_for_agent(agent: Agent, *, caller: Caller | str, reason: str = "agent archived") -> list[AgentTask]:
    """Cancel everything open of an agent, in order of the issues so that nobody waits for another crosswise."""
    rows = AgentTask.objects.filter(agent_id=agent.id, status__in=sorted(OPEN))
    return _cancel_all(rows, caller, reason)


def cancel_for_owner(
    runtime_ids: Sequence[UUID], agent_ids: Sequence[UUID], *, caller: Caller | str
) -> list[AgentTask]:
    """Cancel everything open on these runtimes or of these agents: their owner has left the workspace."""
    theirs = Q(runtime_id__in=list(runtime_ids)) | Q(agent_id__in=list(agent_ids))
    return _cancel_all(AgentTask.objects.filter(theirs, status__in=sorted(OPEN)), caller, "their owner left")


def _cancel_all(rows: QuerySet[AgentTask], caller: Caller | str, reason: str) -> list[AgentTask]:
    with transaction.atomic():
        found = list(rows.order_by("id").values_list("id", "issue_id"))
        share_issues(issue_id for _, issue_id in found)
        return _cancel([task_id for task_id, _ in found], caller, reason)


def _open_of(issue_id: UUID, agent_id: UUID | None, statuses: frozenset[Status]) -> list[UUID]:
    rows = AgentTask.objects.filter(issue_id=issue_id, status__in=sorted(statuses))
    return list((rows.filter(agent_id=agent_id) if agent_id else rows).values_list("id", flat=True))


def _cancel(
    task_ids: Sequence[UUID], caller: Caller | str, reason: str | None, only: Sequence[str] | None = None
) -> list[AgentTask]:
    actor = caller if isinstance(caller, str) else caller.actor
    with transaction.atomic():
        rows = transitions.cancel(task_ids, actor=actor, reason=reason, only=only)
        settle.ended(rows, "cancel")
    return rows


def _settle(rows: list[AgentTask]) -> None:
    settle.ended(rows, "cancel")
    promote.followers(rows)
