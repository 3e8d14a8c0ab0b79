"""A person wants a task done again: a new row that names the old one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import transaction

from queue_app import events, transitions
from queue_app.domain.queueing import priority_of
from queue_app.domain.states import Status
from queue_app.errors import ConflictError, InvalidError
from queue_app.models import Agent, AgentTask, AuditEntry, Issue
from queue_app.services import access, connected_apps, enqueue, settle, squads
from queue_app.services.enqueue import Attribution
from queue_app.services.issue_lock import lock_issue

if TYPE_CHECKING:
    from queue_app.auth import Caller

_COPIED = (
    "workspace_id",
    "agent_id",
    "issue_id",
    "chat_session_id",
    "autopilot_id",
    "autopilot_run_id",
    "kind",
    "serial_key",
    "context",
    "trigger_comment_id",
    "coalesced_comment_ids",
    "trigger_summary",
    "handoff_note",
    "is_leader_task",
    "squad_id",
    "chat_input_task_id",
)
_REPLACED = (Status.QUEUED, Status.DISPATCHED, Status.DEFERRED)


@dataclass(frozen=True)
class _Asked:
    source: AgentTask
    agent: Agent
    attribution: Attribution
    actor: str


def rerun(caller: Caller, what: UUID | Issue | None, note: str = "") -> AgentTask:
    """Make a new task for the same work of the same agent, with a new conversation; returns it.

    `what` is a task's id, or an issue of the caller: its newest task by its present assignee, or a first one. What
    waits or is about to start for the pair is replaced; what runs goes on and the new task waits behind it. Raises
    TaskNotFoundError, NotFoundError, InvalidError with the reason code when the agent cannot take work.
    """
    if isinstance(what, Issue):
        return _rerun_issue(caller, what, note)
    source = access.task_of(caller, what)
    agent = Agent.objects.filter(id=source.agent_id).first()
    if agent is None:
        raise InvalidError("the agent of this task is gone", code="target_unavailable")
    attribution = enqueue.attribute(caller, agent)
    refusal = enqueue.blocked_reason(agent, source.workspace_id, attribution)
    if refusal is not None:
        raise InvalidError(f"this agent cannot take work: {refusal}", code=refusal)
    with transaction.atomic():
        made = _make(_Asked(source, agent, attribution, caller.actor))
        AuditEntry.objects.create(
            workspace_id=source.workspace_id,
            actor_id=caller.user.id,
            actor=caller.actor,
            verb="rerun",
            object_type="task",
            object_id=source.id,
            note=note,
            detail={"task_id": str(made.id)},
        )
    return made


def _rerun_issue(caller: Caller, issue: Issue, note: str) -> AgentTask:
    agent = squads.agent_of(issue)
    if agent is None:
        raise InvalidError("this issue is not assigned to an agent", code="target_unavailable")
    newest = AgentTask.objects.filter(issue_id=issue.id, agent_id=agent.id).order_by("-created_at").first()
    if newest is not None:
        return rerun(caller, newest.id, note)
    outcome = enqueue.assign(issue, agent, caller=caller)
    if outcome.task is None:
        raise InvalidError(f"this agent cannot take work: {outcome.reason}", code=outcome.reason)
    return outcome.task


def _make(asked: _Asked) -> AgentTask:
    lock_issue(asked.source.issue_id)
    # The second round is for a row that slipped into the slot between the cancel and the insert.
    for _ in range(2):
        _clear(asked)
        made = transitions.enqueue([_values(asked)], actor=asked.actor, reason="rerun")
        if made:
            events.announce("enqueue", made)
            return made[0]
    raise ConflictError("another task of this issue and agent keeps taking its place; try again")


def _clear(asked: _Asked) -> None:
    source = asked.source
    if source.issue_id is None:
        return
    pending = AgentTask.objects.filter(issue_id=source.issue_id, agent_id=source.agent_id, status__in=_REPLACED)
    rows = transitions.cancel(
        list(pending.values_list("id", flat=True)), actor=asked.actor, reason="rerun", only=_REPLACED
    )
    settle.ended(rows, "cancel")


def _values(asked: _Asked) -> dict[str, Any]:
    source = asked.source
    values: dict[str, Any] = {name: getattr(source, name) for name in _COPIED}
    priority = priority_of(source.issue.priority) if source.issue is not None else source.base_priority
    values.update(
        runtime_id=asked.agent.runtime_id,
        priority=priority,
        originator_user_id=asked.attribution.originator,
        accountable_user_id=asked.attribution.accountable,
        originator_source=asked.attribution.source,
        delegated_from_task_id=asked.attribution.delegated_from,
        trigger_evidence_kind="rerun",
        trigger_evidence_ref_id=source.id,
        rerun_of_task_id=source.id,
        force_fresh_session=True,
        work_dir=source.work_dir,
        **connected_apps.snapshot(source.workspace_id),
    )
    return values
