"""The sequel of failures: a new attempt by rule, or the reason why there is none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from queue_app import events, transitions
from queue_app.conf import conf
from queue_app.domain import contexts, retry_policy, sessions
from queue_app.domain.queueing import CHAT_RETRY_PRIORITY
from queue_app.domain.retry_policy import Decision, No, Retry
from queue_app.domain.states import PENDING_SLOT, Kind, Status
from queue_app.models import Agent, AgentTask
from queue_app.services import connected_apps
from queue_app.services.clock import database_now

_COPIED = (
    "workspace_id",
    "agent_id",
    "runtime_id",
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
    "initiator_user_id",
    "originator_user_id",
    "accountable_user_id",
    "originator_source",
    "trigger_evidence_kind",
    "trigger_evidence_ref_id",
    "delegated_from_task_id",
    "rule_version_id",
    "chat_input_task_id",
    "work_dir",
)


def decide(task: AgentTask, reason: str, error: str, *, retry_rate_limits: bool) -> Decision:
    """The policy's decision for a task that fails, or has failed, with this reason and text."""
    return retry_policy.decide(
        retry_policy.Facts(
            reason=reason,
            attempt=task.attempt,
            max_attempts=task.max_attempts,
            has_link=task.issue_id is not None or task.chat_session_id is not None,
            autopilot=task.autopilot_run_id is not None or contexts.autopilot_run(task.context) is not None,
            poisoned=sessions.poisoned(reason, error),
            retry_rate_limits=retry_rate_limits,
            offline_wait=conf.RETRY_OFFLINE_DEFERRAL,
            network_wait=conf.RETRY_NETWORK_WAIT,
            jitter=random.random(),
        )
    )


def after_failures(rows: Sequence[AgentTask], now: datetime | None = None) -> list[AgentTask]:
    """Make the next attempts of rows that just failed, in the caller's transaction.

    Returns the children made now; `announce` tells of them after the failure is told. Of a row without one,
    `not_retried_because` says why; a row that already had one gets no second. A pending row of the same issue and agent
    in the way costs the retry and never the failure.
    """
    failed = [row for row in rows if row.status == Status.FAILED]
    if not failed:
        return []
    opted_in = _opted_in(failed)
    decisions = {
        row.id: decide(row, row.failure_reason or "", row.error or "", retry_rate_limits=row.agent_id in opted_in)
        for row in failed
    }
    children = _enqueue(failed, decisions, now)
    _explain(failed, decisions, {child.retry_of_task_id for child in children}, now)
    return children


def announce(children: Sequence[AgentTask]) -> None:
    """After commit: tell of new attempts and wake their runtimes."""
    events.announce("enqueue", [child for child in children if child.status == Status.QUEUED])
    # Only a due moment was created: the verdict must forget the old one, but there is nothing to look for yet.
    events.announce("defer", [child for child in children if child.status == Status.DEFERRED], wakes=False)


def _opted_in(rows: Sequence[AgentTask]) -> set[UUID]:
    ids = {row.agent_id for row in rows}
    return set(Agent.objects.filter(id__in=ids, retry_rate_limits=True).values_list("id", flat=True))


def _enqueue(rows: Sequence[AgentTask], decisions: dict[UUID, Decision], now: datetime | None) -> list[AgentTask]:
    moment = now or database_now()
    asked = [_child(row, decision, moment) for row in rows if isinstance(decision := decisions[row.id], Retry)]
    # The end of the old row cleared its copy; the new attempt takes the apps as they are now.
    apps = {
        workspace_id: connected_apps.snapshot(workspace_id) for workspace_id in {row["workspace_id"] for row in asked}
    }
    asked = [{**row, **apps[row["workspace_id"]]} for row in asked]
    return transitions.enqueue(asked, actor="server", reason="retry", now=now) if asked else []


def _child(row: AgentTask, decision: Retry, moment: datetime) -> dict[str, Any]:
    priority, base = row.priority, row.base_priority
    if row.kind == Kind.CHAT:
        priority, base = max(priority, CHAT_RETRY_PRIORITY), max(base, CHAT_RETRY_PRIORITY)
    values = {name: getattr(row, name) for name in _COPIED}
    values.update(
        status=decision.status,
        priority=priority,
        base_priority=base,
        attempt=row.attempt + 1,
        max_attempts=decision.max_attempts,
        parent_task_id=row.id,
        retry_of_task_id=row.id,
        session_id=None if decision.fresh_session else row.session_id,
        retired_session_id=row.retired_session_id,
        force_fresh_session=decision.fresh_session or (row.force_fresh_session and not row.session_id),
    )
    if decision.status == Status.DEFERRED:
        values["fire_at"] = moment + timedelta(seconds=decision.delay)
    return values


def _explain(
    rows: Sequence[AgentTask], decisions: dict[UUID, Decision], made: set[UUID | None], now: datetime | None
) -> None:
    missing = [row for row in rows if isinstance(decisions[row.id], Retry) and row.id not in made]
    reasons = _why_missing(missing) if missing else {}
    for row in rows:
        decision = decisions[row.id]
        if isinstance(decision, No):
            reasons[row.id] = decision.because
    # A failure that was reported one by one carries its reason from the statement that ended it.
    unsaid = {row.id: reasons[row.id] for row in rows if row.id in reasons and row.not_retried_because is None}
    if not unsaid:
        return
    told = {row.id: row for row in transitions.explain_no_retries(unsaid, now=now)}
    for row in rows:
        if row.id in told:
            row.not_retried_because = told[row.id].not_retried_because
            row.event_seq, row.event_hash = told[row.id].event_seq, told[row.id].event_hash


def _why_missing(rows: Sequence[AgentTask]) -> dict[UUID, str]:
    """Why the queue took no child of these rows. A row whose child is there already is not among the answers."""
    children = AgentTask.objects.filter(retry_of_task_id__in=[row.id for row in rows])
    have = set(children.values_list("retry_of_task_id", flat=True))
    issues = {row.issue_id for row in rows if row.issue_id}
    pending = AgentTask.objects.filter(issue_id__in=issues, status__in=sorted(PENDING_SLOT))
    held = set(pending.values_list("issue_id", "agent_id"))
    return {
        row.id: (
            "no, because another task of this issue and agent is already pending"
            if (row.issue_id, row.agent_id) in held
            else "no, because its agent or runtime is gone or archived"
        )
        for row in rows
        if row.id not in have
    }
