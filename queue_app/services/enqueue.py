"""Work for agents: assignments and comments become tasks, or join the one that waits already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from queue_app import events, transitions
from queue_app.domain import contexts
from queue_app.domain.queueing import priority_of, serial_key, summary
from queue_app.domain.states import OPEN, PENDING_SLOT, WAITING, Kind, Status
from queue_app.errors import InvalidError
from queue_app.models import Agent, AgentRuntime, AgentTask, Comment, Issue
from queue_app.services import connected_apps, squads
from queue_app.services.clock import database_now
from queue_app.services.issue_lock import lock_issue

if TYPE_CHECKING:
    from queue_app.auth import Caller

QUEUED, COALESCED, BLOCKED = "queued", "coalesced", "blocked"
ROUNDS = 4


@dataclass(frozen=True)
class Enqueued:
    """What became of a wish for work: a task of its own, a place in a waiting one, or a reason why not."""

    outcome: str
    task: AgentTask | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Attribution:
    """Whose authority a run carries, who answers for it, and how that was found out."""

    originator: UUID | None
    accountable: UUID | None
    source: str
    delegated_from: UUID | None = None


@dataclass(frozen=True)
class Wish:
    """One thing to be done on an issue by an agent, with everything that its task will carry."""

    issue: Issue
    agent: Agent
    actor: str
    attribution: Attribution
    evidence_kind: str
    evidence_ref: UUID | None
    comment: Comment | None = None
    earlier_comments: tuple[UUID, ...] = ()
    handoff_note: str | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    rule_version_id: UUID | None = None
    squad_id: UUID | None = None

    @property
    def says_something(self) -> bool:
        """Whether it brings words that a task which runs already does not know."""
        return self.comment is not None or bool(self.handoff_note)


def attribute(caller: Caller | str, agent: Agent) -> Attribution:
    """The attribution of what a caller asks for; one without anybody accountable is refused later.

    A person acts as themself. A task carries on the authority of its own run. Anything else falls back on the agent's
    owner, who answers for it without having asked.
    """
    if not isinstance(caller, str):
        if caller.kind == "user":
            return Attribution(caller.user.id, caller.user.id, "direct_human")
        task = caller.task
        if task is not None and task.accountable_user_id is not None:
            return Attribution(task.originator_user_id, task.accountable_user_id, "delegation", task.id)
    return Attribution(None, agent.owner_id, "owner_fallback")


def assign(issue: Issue, agent: Agent, *, caller: Caller | str, handoff_note: str | None = None) -> Enqueued:
    """An issue was given to an agent: make a task, unless an open one of the pair will see to it anyway.

    A handoff note is never dropped: behind a task that has begun it makes one more.
    """
    with transaction.atomic():
        lock_issue(issue.id)
        wish = Wish(
            issue=issue,
            agent=agent,
            actor=_actor(caller),
            attribution=attribute(caller, agent),
            evidence_kind="issue_assignment",
            evidence_ref=issue.id,
            handoff_note=handoff_note or None,
        )
        there = _rows(wish, OPEN).first()
        if there is not None and not wish.says_something:
            return Enqueued(COALESCED, there)
        return _settle(wish)


def enqueue_for_issue(
    issue: Issue,
    agent: Agent,
    *,
    caller_or_actor: Caller | str,
    trigger_comment: Comment | None = None,
    handoff_note: str | None = None,
    evidence_kind: str,
    evidence_ref: UUID | None,
) -> Enqueued:
    """Make a task for an issue, or fold the comment into the one that waits.

    Outcomes: `queued` with the new task (deferred behind one that is about to start), `coalesced` with the task that
    carries it, `blocked` with a reason code. Whatever is returned was written in this transaction.
    """
    wish = Wish(
        issue=issue,
        agent=agent,
        actor=_actor(caller_or_actor),
        attribution=attribute(caller_or_actor, agent),
        evidence_kind=evidence_kind,
        evidence_ref=evidence_ref,
        comment=trigger_comment,
        handoff_note=handoff_note or None,
    )
    return fulfil(wish)


def fulfil(wish: Wish) -> Enqueued:
    """Do what a wish asks for, in one transaction."""
    with transaction.atomic():
        lock_issue(wish.issue.id)
        return _settle(wish)


def enqueue_many(
    tasks: Sequence[Mapping[str, Any]], *, actor: str, batch: int = 1000, tell: bool = True
) -> list[AgentTask]:
    """Make many tasks from given columns (see `transitions.enqueue`), in batches of their own transactions.

    Returns the rows made; a missing one met an occupied slot or an owner that is gone. Each batch wakes a runtime once;
    `tell` False leaves out the event for each row, which costs as much as the row itself. Raises InvalidError, with
    nothing written, for a context of the wrong shape.
    """
    made: list[AgentTask] = []
    for task in tasks:
        check_context(str(task["kind"]), task.get("context", {}))
    for start in range(0, len(tasks), batch):
        with transaction.atomic():
            rows = transitions.enqueue(tasks[start : start + batch], actor=actor)
            if tell:
                events.announce("enqueue", rows)
            else:
                runtimes = {row.runtime_id for row in rows if row.runtime_id}
                transaction.on_commit(partial(events.wake, runtimes))
        made.extend(rows)
    return made


def values_of(wish: Wish, **extra: Any) -> dict[str, Any]:
    """The columns of a task for a wish: its snapshot of agent, runtime, trigger, priority and people."""
    comment = wish.comment
    values: dict[str, Any] = {
        "workspace_id": wish.issue.workspace_id,
        "agent_id": wish.agent.id,
        "runtime_id": wish.agent.runtime_id,
        "issue_id": wish.issue.id,
        "kind": Kind.COMMENT if comment else Kind.ISSUE,
        "serial_key": serial_key(Kind.ISSUE, issue_id=wish.issue.id),
        "priority": priority_of(wish.issue.priority),
        "trigger_comment_id": comment.id if comment else None,
        "coalesced_comment_ids": list(wish.earlier_comments),
        "trigger_summary": summary(comment.content if comment else wish.issue.title),
        "handoff_note": wish.handoff_note,
        "context": dict(wish.context),
        "rule_version_id": wish.rule_version_id,
        "is_leader_task": wish.squad_id is not None,
        "squad_id": wish.squad_id,
        "trigger_evidence_kind": wish.evidence_kind,
        "trigger_evidence_ref_id": wish.evidence_ref,
        **people(wish.attribution),
    }
    return {**values, **extra}


def _with_apps(wish: Wish, **extra: Any) -> dict[str, Any]:
    return values_of(wish, **connected_apps.snapshot(wish.issue.workspace_id), **extra)


def people(attribution: Attribution) -> dict[str, Any]:
    """The columns that say for whom a task runs; they are always written together."""
    return {
        "originator_user_id": attribution.originator,
        "accountable_user_id": attribution.accountable,
        "originator_source": attribution.source,
        "delegated_from_task_id": attribution.delegated_from,
    }


def check_context(kind: str, context: Any) -> None:
    """Raise InvalidError, naming the key, if a task of this kind may not have this context."""
    wrong = contexts.problem(kind, context)
    if wrong is not None:
        raise InvalidError(wrong[1], field=wrong[0])


def blocked_reason(agent: Agent, workspace_id: UUID, attribution: Attribution) -> str | None:
    """Why nothing can be queued for this agent at all, as a code, or None."""
    if agent.archived_at is not None or agent.workspace_id != workspace_id:
        return "target_unavailable"
    if agent.runtime_id is None:
        return "agent_runtime_required"
    if attribution.accountable is None:
        return "attribution_blocked"
    return None


def _settle(wish: Wish) -> Enqueued:
    # The rows of the pair are also moved by claims, retries, promotions and reruns, which do not take the issue's lock.
    check_context(Kind.COMMENT if wish.comment else Kind.ISSUE, wish.context)
    agent = Agent.objects.filter(id=wish.agent.id).first()
    if agent is None:
        return Enqueued(BLOCKED, reason="target_unavailable")
    wish = replace(wish, agent=agent, squad_id=squads.led_by(wish.issue, agent))
    reason = blocked_reason(agent, wish.issue.workspace_id, wish.attribution)
    if reason is not None:
        return Enqueued(BLOCKED, reason=reason)
    for _ in range(ROUNDS):
        outcome = _try(wish)
        if outcome is not None:
            return outcome
    return Enqueued(BLOCKED, reason="internal_error")


def _try(wish: Wish) -> Enqueued | None:
    """One round; None when another writer was faster and the pair must be looked at again."""
    if wish.comment is not None:
        merged = _merge(wish)
        if merged is not None:
            return Enqueued(COALESCED, merged)
    made = transitions.enqueue([_with_apps(wish)], actor=wish.actor)
    if made:
        events.announce("enqueue", made)
        return Enqueued(QUEUED, made[0])
    holder = _rows(wish, PENDING_SLOT).first()
    if holder is None:
        runtime = wish.agent.runtime_id
        workspace = wish.issue.workspace_id
        gone = runtime is None or not AgentRuntime.objects.filter(id=runtime, workspace_id=workspace).exists()
        return Enqueued(BLOCKED, reason="target_unavailable") if gone else None
    if not wish.says_something:
        return Enqueued(COALESCED, holder)
    return _behind(wish) if holder.status == Status.DISPATCHED or wish.comment is None else None


def _behind(wish: Wish) -> Enqueued | None:
    """A deferred task behind one that is about to start and whose answer may be on its way already.

    It is outside the pending slot and is promoted as soon as that is free, so the words wait in a row of their own
    instead of in a plan that a failure would drop.
    """
    made = transitions.enqueue([_with_apps(wish, status=Status.DEFERRED, fire_at=database_now())], actor=wish.actor)
    events.announce("defer", made, wakes=False)
    return Enqueued(QUEUED, made[0]) if made else None


def _merge(wish: Wish) -> AgentTask | None:
    """Fold the comments, with the newest writer's attribution, into the newest waiting task of the pair, if any."""
    target = _rows(wish, WAITING).filter(escalation_for_task_id__isnull=True).first()
    if target is None or wish.comment is None:
        return None
    new = [*wish.earlier_comments, wish.comment.id]
    known = {target.trigger_comment_id, *target.coalesced_comment_ids}
    merged: AgentTask | None = target
    for comment_id in new:
        if comment_id not in known:
            merged = transitions.merge(
                target.id,
                comment_id=comment_id,
                summary=summary(wish.comment.content),
                attribution={
                    "originator": wish.attribution.originator,
                    "accountable": wish.attribution.accountable,
                    "source": wish.attribution.source,
                    "delegated_from": wish.attribution.delegated_from,
                    "evidence_kind": wish.evidence_kind,
                    "evidence_ref": wish.evidence_ref,
                },
                actor=wish.actor,
            )
            if merged is None:
                return None
    return merged


def _rows(wish: Wish, statuses: frozenset[Status]) -> Any:
    return AgentTask.objects.filter(
        Q(issue_id=wish.issue.id, agent_id=wish.agent.id), status__in=sorted(statuses)
    ).order_by("-created_at", "-id")


def _actor(caller: Caller | str) -> str:
    return caller if isinstance(caller, str) else caller.actor
