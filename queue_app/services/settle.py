"""What follows an end in its transaction, whichever verb ended the task: next attempt, effects, tokens, news."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.models.functions import Now

from queue_app import events, hooks
from queue_app.models import AgentTask, TaskToken
from queue_app.services import agent_status, retry


def failures(rows: Sequence[AgentTask], verb: str, *, now: datetime | None = None) -> list[AgentTask]:
    """Settle rows that `verb` failed; returns the retries made. The order is the same for every verb.

    The failure is announced before its retry, and clients learn with it whether one is pending.
    """
    if not rows:
        return []
    children = retry.after_failures(rows, now)
    by_parent = {child.retry_of_task_id: child for child in children}
    events.announce(verb, [row for row in rows if row.id in by_parent], retry_pending=True)
    events.announce(verb, [row for row in rows if row.id not in by_parent], retry_pending=False)
    retry.announce(children)
    for row in rows:
        hooks.run_end_effects(row, {"retry": by_parent.get(row.id)})
    _close(rows)
    return children


def ended(rows: Sequence[AgentTask], verb: str) -> None:
    """Settle rows that completed or were cancelled."""
    if not rows:
        return
    events.announce(verb, rows)
    for row in rows:
        hooks.run_end_effects(row, {"retry": None})
    _close(rows)


def _close(rows: Sequence[AgentTask]) -> None:
    TaskToken.objects.filter(task_id__in=[row.id for row in rows], revoked_at__isnull=True).update(revoked_at=Now())
    agent_status.refresh(sorted({row.agent_id for row in rows}))
