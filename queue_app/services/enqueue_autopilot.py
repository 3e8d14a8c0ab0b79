"""A run of an autopilot becomes a task: of its own, or on the issue that the run has made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

from django.db import transaction

from queue_app import events, transitions
from queue_app.domain.queueing import serial_key, summary
from queue_app.domain.redaction import clean_json
from queue_app.domain.states import Kind
from queue_app.models import Agent, Issue
from queue_app.services import enqueue
from queue_app.services.enqueue import BLOCKED, QUEUED, Attribution, Enqueued, Wish

EVIDENCE = "autopilot_run"


def enqueue_autopilot(
    *,
    workspace_id: UUID,
    agent: Agent,
    autopilot_id: UUID,
    run_id: UUID,
    context: Mapping[str, Any],
    issue: Issue | None = None,
    accountable_user_id: UUID | None,
    actor: str,
    rule_version_id: UUID | None = None,
) -> Enqueued:
    """Make the task of one autopilot run, in one transaction with whatever the caller writes beside it.

    `context` is the snapshot that the prompt is made of: `title`, `description`, `source` (manual, schedule, webhook,
    api) and `trigger_payload` (any JSON). Without an issue the row is of kind autopilot and runs alone among those of
    its autopilot; with one it is an issue task whose context names the run. Neither is ever retried: the schedule owns
    the next run. `accountable_user_id` is the person who published the rule; None falls back on the agent's owner.

    Outcomes: `queued`; `coalesced` with the task that waits on the issue already; `blocked` with a reason code. Raises
    InvalidError for a context of the wrong shape. Ends are heard through `hooks.on_end`.
    """
    snapshot = cast(dict[str, Any], clean_json(dict(context)))
    attribution = _attribution(agent, accountable_user_id)
    with transaction.atomic():
        if issue is not None:
            if issue.workspace_id != workspace_id:
                return Enqueued(BLOCKED, reason="target_unavailable")
            return enqueue.fulfil(
                _wish(issue, agent, autopilot_id, run_id, snapshot, attribution, actor, rule_version_id)
            )
        enqueue.check_context(Kind.AUTOPILOT, snapshot)
        fresh = Agent.objects.filter(id=agent.id).first()
        reason = "target_unavailable" if fresh is None else enqueue.blocked_reason(fresh, workspace_id, attribution)
        if fresh is None or reason is not None:
            return Enqueued(BLOCKED, reason=reason)
        values = {
            "workspace_id": workspace_id,
            "agent_id": fresh.id,
            "runtime_id": fresh.runtime_id,
            "kind": Kind.AUTOPILOT,
            "serial_key": serial_key(Kind.AUTOPILOT, autopilot_id=autopilot_id),
            "autopilot_id": autopilot_id,
            "autopilot_run_id": run_id,
            "context": snapshot,
            "trigger_summary": summary(str(snapshot.get("title") or "")) or None,
            "rule_version_id": rule_version_id,
            "trigger_evidence_kind": EVIDENCE,
            "trigger_evidence_ref_id": run_id,
            **enqueue.people(attribution),
        }
        made = transitions.enqueue([values], actor=actor)
        events.announce("enqueue", made)
    return Enqueued(QUEUED, made[0]) if made else Enqueued(BLOCKED, reason="target_unavailable")


def _attribution(agent: Agent, accountable: UUID | None) -> Attribution:
    # No person asked for this run, so nobody is its originator.
    if accountable is not None:
        return Attribution(None, accountable, "rule_owner")
    return Attribution(None, agent.owner_id, "owner_fallback")


def _wish(
    issue: Issue,
    agent: Agent,
    autopilot_id: UUID,
    run_id: UUID,
    snapshot: dict[str, Any],
    attribution: Attribution,
    actor: str,
    rule_version_id: UUID | None,
) -> Wish:
    named = {**snapshot, "autopilot_id": str(autopilot_id), "autopilot_run_id": str(run_id)}
    return Wish(
        issue=issue,
        agent=agent,
        actor=actor,
        attribution=attribution,
        evidence_kind=EVIDENCE,
        evidence_ref=run_id,
        context=named,
        rule_version_id=rule_version_id,
    )
