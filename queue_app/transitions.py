"""THE STATE MACHINE: the only writer of a task's status, one function for each verb of `domain.states.EDGES`.

Every function runs one guarded statement that names its prior states, writes its event with it and returns the rows
that really moved, as they are now (`from_status` tells what they were). A row that is not returned was not touched.
Callers own the transaction, decide what a refusal means, and announce after commit.

`actor` says who acts: `user:<id>`, `daemon:<runtime id>`, `task:<id>`, `sweep:<name>` or `server`. `now` replaces the
database's clock in tests and previews. A `claim_token` of None skips the fence and leaves the verdict to the state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from django.db import connection

from queue_app.conf import conf
from queue_app.domain.history import changes_expression
from queue_app.models import AgentTask
from queue_app.models.base import new_id
from queue_app.sql import edges
from queue_app.sql.statements import Transition

Moved = AgentTask
"""A row that a transition moved, as it is now; `from_status` is what it was before."""


def _apply(transition: Transition, actor: str, now: datetime | None, **params: Any) -> list[Moved]:
    values = {"actor": actor, "now": now, "reason": None, **params}
    return list(Moved.objects.raw(transition.text, values))


def _one(transition: Transition, actor: str, now: datetime | None, **params: Any) -> Moved | None:
    rows = _apply(transition, actor, now, **params)
    return rows[0] if rows else None


# ---------------------------------------------------------------------------------------------------- making rows


_DEFAULTS: dict[str, Any] = {
    "status": "queued",
    "priority": 0,
    "attempt": 1,
    "max_attempts": 2,
    "context": {},
    "coalesced_comment_ids": [],
    "delivered_comment_ids": [],
    "deliveries": 0,
    "lease_extensions": 0,
    "session_rollout_missing": False,
    "force_fresh_session": False,
    "is_leader_task": False,
}
_UNSET = frozenset({"event_seq", "event_hash"})


@cache
def _enqueue_sql() -> str:
    columns = [str(field.column) for field in AgentTask._meta.concrete_fields if field.column not in _UNSET]
    changes = changes_expression({column: f"n.{column}" for column in columns})
    return edges.ENQUEUE.format(changes=changes, columns=", ".join(columns))


def enqueue(
    tasks: Sequence[Mapping[str, Any]], *, actor: str, reason: str | None = None, now: datetime | None = None
) -> list[Moved]:
    """Make rows, `queued` or, where a task says so, `deferred` with its `fire_at`.

    Each task maps columns of the queue to values; `workspace_id`, `agent_id`, `runtime_id` and `kind` must be there.
    Returns the rows made. One that is missing met an occupied pending slot, an existing retry of the same parent or an
    owner that is gone or archived; nothing of it was written and the others stand.
    """
    with connection.cursor() as cursor:
        if now is None:
            cursor.execute("SELECT now()")
            now = cursor.fetchone()[0]
    rows = [{**_DEFAULTS, "created_at": now, "id": new_id(), **task} for task in tasks]
    for row in rows:
        row.setdefault("base_priority", row["priority"])
    params = {"rows": json.dumps(rows, default=_plain), "actor": actor, "reason": reason}
    return list(Moved.objects.raw(_enqueue_sql(), params))


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


# ------------------------------------------------------------------------------------------------ while it waits


def merge(
    task_id: UUID,
    *,
    comment_id: UUID,
    summary: str | None,
    attribution: Mapping[str, Any],
    actor: str,
    now: datetime | None = None,
) -> Moved | None:
    """Fold a newer comment into a waiting row: it becomes the trigger, the old trigger joins the coalesced ones.

    `attribution` holds originator, accountable, source, evidence_kind and evidence_ref, and delegated_from if a task
    wrote it; they replace the old as one.
    """
    people = {"delegated_from": None, **attribution}
    return _one(edges.MERGE, actor, now, task_id=task_id, comment_id=comment_id, summary=summary, **people)


def reprioritise(task_id: UUID, *, priority: int, actor: str, now: datetime | None = None) -> Moved | None:
    """Give a waiting row another priority, 0 (none) to 4 (urgent)."""
    return _one(edges.REPRIORITISE, actor, now, task_id=task_id, priority=priority)


def age(task_ids: Sequence[UUID], *, step: float, actor: str, now: datetime | None = None) -> list[Moved]:
    """Lift waiting heads by one priority for every `step` seconds waited, up to urgent; `base_priority` stays."""
    return _apply(edges.AGE, actor, now, task_ids=list(task_ids), step=step, limit=len(task_ids))


def promote(
    *, runtime_ids: Sequence[UUID] | None, actor: str, limit: int = 500, now: datetime | None = None
) -> list[Moved]:
    """Queue deferred rows that are due on fresh runtimes, whose slot is free and whose old process is gone.

    Raises IntegrityError when an enqueue that is not committed yet takes the slot first: the caller tries again later.
    """
    ids = None if runtime_ids is None else list(runtime_ids)
    return _apply(edges.PROMOTE, actor, now, runtime_ids=ids, freshness=conf.RUNTIME_FRESHNESS, limit=limit)


# ------------------------------------------------------------------------------------------ from claim to start


def requeue(
    task_id: UUID, *, claim_token: UUID, reason: str, actor: str = "server", now: datetime | None = None
) -> Moved | None:
    """Put back a delivery whose answer could not be built. `deliveries` stays counted, so an unbuildable head ends."""
    return _one(edges.REQUEUE, actor, now, task_id=task_id, claim_token=claim_token, reason=reason)


def record_delivery(
    task_id: UUID, *, claim_token: UUID, comment_ids: Sequence[UUID], now: datetime | None = None
) -> Moved | None:
    """Note the comments whose text this delivery's answer really carries; replaces what an earlier delivery noted."""
    ids = list(comment_ids)
    return _one(edges.RECORD_DELIVERY, "server", now, task_id=task_id, claim_token=claim_token, comment_ids=ids)


def renew_lease(
    task_id: UUID, *, runtime_id: UUID, claim_token: UUID | None, actor: str, now: datetime | None = None
) -> Moved | None:
    """Extend the prepare lease of a delivery to now + `PREPARE_LEASE` seconds."""
    lease = conf.PREPARE_LEASE
    return _one(edges.RENEW, actor, now, task_id=task_id, runtime_id=runtime_id, claim_token=claim_token, lease=lease)


def park(
    task_id: UUID, *, claim_token: UUID | None, wait_reason: str, actor: str, now: datetime | None = None
) -> Moved | None:
    """The daemon waits for a local directory; the lease runs on."""
    lease = conf.PREPARE_LEASE
    return _one(edges.PARK, actor, now, task_id=task_id, claim_token=claim_token, wait_reason=wait_reason, lease=lease)


def start(task_id: UUID, *, claim_token: UUID | None, actor: str, now: datetime | None = None) -> Moved | None:
    """The commit point of a delivery: preparation is over and the agent may be launched, once."""
    return _one(edges.START, actor, now, task_id=task_id, claim_token=claim_token)


def pin_session(
    task_id: UUID,
    *,
    claim_token: UUID | None,
    session_id: str | None,
    work_dir: str | None,
    actor: str,
    now: datetime | None = None,
) -> Moved | None:
    """Keep where a run could be resumed, as soon as it is known."""
    return _one(
        edges.PIN, actor, now, task_id=task_id, claim_token=claim_token, session_id=session_id, work_dir=work_dir
    )


# ------------------------------------------------------------------------------------------------------- the ends


@dataclass(frozen=True)
class Report:
    """What a daemon says at the end about where the work and the conversation are; None leaves a value as it was."""

    session_id: str | None = None
    retired_session_id: str | None = None
    session_rollout_missing: bool = False
    work_dir: str | None = None
    durable_work_dir: str | None = None
    branch_name: str | None = None


def complete(
    task_id: UUID,
    *,
    claim_token: UUID | None,
    result: Mapping[str, Any],
    report: Report,
    actor: str,
    now: datetime | None = None,
) -> Moved | None:
    """Store a run's result."""
    body = json.dumps(result, default=str)
    return _one(edges.COMPLETE, actor, now, task_id=task_id, claim_token=claim_token, result=body, **asdict(report))


def fail(
    task_id: UUID,
    *,
    claim_token: UUID | None,
    reason: str,
    error: str,
    report: Report | None = None,
    not_retried_because: str | None = None,
    actor: str,
    now: datetime | None = None,
) -> Moved | None:
    """End an active row as failed for `reason`, one of `domain.failure_reasons`."""
    return _one(
        edges.FAIL,
        actor,
        now,
        task_id=task_id,
        claim_token=claim_token,
        reason=reason,
        error=error,
        not_retried_because=not_retried_because,
        **asdict(report or Report()),
    )


def _ids(task_ids: Sequence[UUID] | None) -> list[UUID] | None:
    return None if task_ids is None else list(task_ids)


def recover_orphan(
    *,
    runtime_id: UUID | None,
    task_ids: Sequence[UUID] | None = None,
    claim_tokens: Sequence[UUID] | None = None,
    error: str,
    actor: str,
    limit: int = 500,
    now: datetime | None = None,
) -> list[Moved]:
    """Fail what a restarted daemon had in flight, or (with ids and tokens) what its heartbeats prove it lost."""
    return _apply(
        edges.RECOVER,
        actor,
        now,
        runtime_id=runtime_id,
        task_ids=_ids(task_ids),
        claim_tokens=None if claim_tokens is None else list(claim_tokens),
        error=error,
        reason="runtime_recovery",
        limit=limit,
    )


def window_params() -> dict[str, float]:
    """The windows that the sweeps' conditions name, in seconds."""
    return {
        "dispatch_timeout": conf.DISPATCH_TIMEOUT,
        "recovery_window": conf.CLAIM_RECOVERY_WINDOW,
        "max_deliveries": conf.MAX_DELIVERIES,
        "backstop": conf.RUNNING_BACKSTOP,
        "grace": conf.RUNTIME_RECONNECT_GRACE,
        "freshness": conf.RUNTIME_FRESHNESS,
        "queue_ttl": conf.QUEUE_TTL,
        "stop_limit": conf.STOP_PENDING_LIMIT,
    }


def _sweep(
    transition: Transition,
    reason: str,
    error: str,
    actor: str,
    task_ids: Sequence[UUID] | None,
    limit: int,
    now: datetime | None,
) -> list[Moved]:
    windows = window_params()
    these = _ids(task_ids)
    return _apply(transition, actor, now, error=error, reason=reason, task_ids=these, limit=limit, **windows)


def time_out(
    *,
    error: str,
    actor: str,
    task_ids: Sequence[UUID] | None = None,
    limit: int = 500,
    now: datetime | None = None,
) -> list[Moved]:
    """Fail preparations that died, deliveries that nobody starts, and runs of a machine that is lost for good."""
    return _sweep(edges.TIME_OUT, "timeout", error, actor, task_ids, limit, now)


def lose_runtime(
    *,
    error: str,
    actor: str,
    task_ids: Sequence[UUID] | None = None,
    limit: int = 500,
    now: datetime | None = None,
) -> list[Moved]:
    """Fail what a runtime held that has been silent for the whole reconnect grace (D3c)."""
    return _sweep(edges.LOSE, "runtime_offline", error, actor, task_ids, limit, now)


def expire_queued(
    *,
    error: str,
    actor: str,
    task_ids: Sequence[UUID] | None = None,
    limit: int = 500,
    now: datetime | None = None,
) -> list[Moved]:
    """Fail rows that waited past the queue's time to live; retries are exempt."""
    return _sweep(edges.EXPIRE_QUEUED, "queued_expired", error, actor, task_ids, limit, now)


def expire_deferred(
    *,
    error: str,
    actor: str,
    task_ids: Sequence[UUID] | None = None,
    limit: int = 500,
    now: datetime | None = None,
) -> list[Moved]:
    """Fail retries whose runtime did not come back within the reconnect grace after their time."""
    return _sweep(edges.EXPIRE_DEFERRED, "runtime_reconnect_timeout", error, actor, task_ids, limit, now)


def cancel(
    task_ids: Sequence[UUID],
    *,
    actor: str,
    reason: str | None = None,
    only: Sequence[str] | None = None,
    failure_reason: str | None = None,
    error: str | None = None,
    defer_chat: bool = False,
    now: datetime | None = None,
) -> list[Moved]:
    """Cancel open rows, at once. `only` narrows it to some statuses, tested on the locked rows.

    A row whose process may live keeps `stop_pending_since` until its daemon confirms the stop.
    """
    return _apply(
        edges.CANCEL,
        actor,
        now,
        task_ids=list(task_ids),
        only=None if only is None else list(only),
        reason=reason,
        failure_reason=failure_reason,
        error=error,
        defer_chat=defer_chat,
    )


# ---------------------------------------------------------------------------------------------------- after the end


def confirm_stop(
    task_id: UUID,
    *,
    claim_token: UUID | None,
    branch_name: str | None = None,
    durable_work_dir: str | None = None,
    error: str | None = None,
    failure_reason: str | None = None,
    actor: str,
    now: datetime | None = None,
) -> Moved | None:
    """The daemon says that the process of an ended row is gone; what it flushed goes into empty fields only."""
    return _one(
        edges.CONFIRM_STOP,
        actor,
        now,
        task_id=task_id,
        claim_token=claim_token,
        branch_name=branch_name,
        durable_work_dir=durable_work_dir,
        error=error,
        failure_reason=failure_reason,
    )


def release_hold(task_ids: Sequence[UUID], *, reason: str, actor: str, now: datetime | None = None) -> list[Moved]:
    """Let work of the same key pass again: the old process is known, or long enough presumed, to be gone."""
    return _apply(edges.RELEASE_HOLD, actor, now, task_ids=list(task_ids), reason=reason)


def settle_chat(task_id: UUID, *, actor: str, now: datetime | None = None) -> Moved | None:
    """Take the marker of a cancelled chat whose ending is not written yet; the one that gets the row writes it."""
    return _one(edges.SETTLE_CHAT, actor, now, task_id=task_id)


def explain_no_retry(
    task_id: UUID, *, because: str, actor: str = "server", now: datetime | None = None
) -> Moved | None:
    """Say on a failed row why it got no retry."""
    return _one(edges.EXPLAIN_NO_RETRY, actor, now, task_id=task_id, because=because)


def explain_no_retries(
    because: Mapping[UUID, str], *, actor: str = "server", now: datetime | None = None
) -> list[Moved]:
    """Say on each of many failed rows why it got no retry, in one statement."""
    texts = json.dumps({str(task_id): text for task_id, text in because.items()})
    return _apply(edges.EXPLAIN_NO_RETRIES, actor, now, task_ids=list(because), because=texts)
