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
from queue_app.sql.statements import NOW, Transition

FENCE = "(%(claim_token)s::uuid IS NULL OR t.claim_token = %(claim_token)s::uuid)"
LEASE = f"{NOW} + make_interval(secs => %(lease)s)"
_MAY_LIVE = f"CASE WHEN t.status IN ('dispatched', 'waiting_local_directory', 'running') THEN {NOW} END"
_NO_LEASE = {"prepare_lease_expires_at": "NULL::timestamptz"}


Moved = AgentTask
"""A row that a transition moved, as it is now; `from_status` is what it was before."""


def _apply(transition: Transition, actor: str, now: datetime | None, **params: Any) -> list[Moved]:
    values = {"actor": actor, "now": now, "reason": None, **params}
    return list(Moved.objects.raw(transition.text, values))


def _one(transition: Transition, actor: str, now: datetime | None, **params: Any) -> Moved | None:
    rows = _apply(transition, actor, now, **params)
    return rows[0] if rows else None


# ---------------------------------------------------------------------------------------------------- making rows

_ENQUEUE = """
WITH asked AS MATERIALIZED (
  SELECT r.* FROM jsonb_populate_recordset(NULL::agent_task_queue, %(rows)s::jsonb) r
), owned AS MATERIALIZED (
  SELECT r.* FROM asked r
    JOIN agent a ON a.id = r.agent_id AND a.workspace_id = r.workspace_id AND a.archived_at IS NULL
    JOIN agent_runtime m ON m.id = r.runtime_id AND m.workspace_id = r.workspace_id
   ORDER BY r.id
     FOR KEY SHARE OF a, m
), shaped AS MATERIALIZED (
  SELECT n.*, {changes} AS e_changes FROM owned n
), stamped AS MATERIALIZED (
  SELECT s.*, CASE s.status WHEN 'deferred' THEN 'defer' ELSE 'enqueue' END AS e_verb,
         task_event_hash(NULL, s.id, 1, CASE s.status WHEN 'deferred' THEN 'defer' ELSE 'enqueue' END, NULL, s.status,
                         %(reason)s::text, s.attempt, NULL, %(actor)s, s.created_at, s.e_changes) AS e_hash
    FROM shaped s
), made AS (
  INSERT INTO agent_task_queue ({columns}, event_seq, event_hash)
  SELECT {columns}, 1, e_hash FROM stamped ORDER BY id
  ON CONFLICT DO NOTHING
  RETURNING *
), logged AS (
  INSERT INTO task_event (task_id, seq, verb, to_status, reason, attempt, actor, at, changes, hash)
  SELECT s.id, 1, s.e_verb, s.status, %(reason)s::text, s.attempt, %(actor)s, s.created_at, s.e_changes, s.e_hash
    FROM stamped s JOIN made USING (id)
)
SELECT made.*, NULL::text AS from_status FROM made ORDER BY id
"""

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
    return _ENQUEUE.format(changes=changes, columns=", ".join(columns))


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

_MERGE = Transition(
    "merge",
    {
        "trigger_comment_id": "%(comment_id)s::uuid",
        "coalesced_comment_ids": "array_remove(CASE WHEN t.trigger_comment_id IS NULL THEN t.coalesced_comment_ids "
        "ELSE array_append(array_remove(t.coalesced_comment_ids, t.trigger_comment_id), t.trigger_comment_id) END, "
        "%(comment_id)s::uuid)",
        "trigger_summary": "coalesce(%(summary)s::text, t.trigger_summary)",
        "originator_user_id": "%(originator)s::uuid",
        "accountable_user_id": "%(accountable)s::uuid",
        "originator_source": "%(source)s::text",
        "trigger_evidence_kind": "%(evidence_kind)s::text",
        "trigger_evidence_ref_id": "%(evidence_ref)s::uuid",
    },
    guard="t.started_at IS NULL",
)


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

    `attribution` holds originator, accountable, source, evidence_kind and evidence_ref; they replace the old as one.
    """
    return _one(_MERGE, actor, now, task_id=task_id, comment_id=comment_id, summary=summary, **attribution)


_REPRIORITISE = Transition(
    "reprioritise", {"priority": "%(priority)s::smallint", "base_priority": "%(priority)s::smallint"}
)


def reprioritise(task_id: UUID, *, priority: int, actor: str, now: datetime | None = None) -> Moved | None:
    """Give a waiting row another priority, 0 (none) to 4 (urgent)."""
    return _one(_REPRIORITISE, actor, now, task_id=task_id, priority=priority)


_AGED = f"least(4, t.base_priority + floor(extract(epoch FROM {NOW} - t.created_at) / %(step)s))"
_AGE = Transition(
    "age",
    {"priority": f"{_AGED}::smallint"},
    guard=f"t.priority < {_AGED}",
    where="q.id = ANY(%(task_ids)s::uuid[]) AND q.status = 'queued'",
    batch=True,
)


def age(task_ids: Sequence[UUID], *, step: float, actor: str, now: datetime | None = None) -> list[Moved]:
    """Lift waiting heads by one priority for every `step` seconds waited, up to urgent; `base_priority` stays."""
    return _apply(_AGE, actor, now, task_ids=list(task_ids), step=step, limit=len(task_ids))


HOLD = """EXISTS (SELECT 1 FROM agent_task_queue h
  WHERE h.runtime_id = {row}.runtime_id AND h.agent_id = {row}.agent_id AND h.stop_pending_since IS NOT NULL
    AND (h.serial_key = {row}.serial_key OR (h.serial_key IS NULL AND {row}.parent_task_id = h.id)))"""
"""SQL: an older process of the same agent and key may still live on the row's runtime (design D3)."""

_FRESH = f"m.status = 'online' AND m.last_seen_at >= {NOW} - make_interval(secs => %(freshness)s)"

PROMOTE_WHERE = f"""q.status = 'deferred' AND q.fire_at <= {NOW}
     AND (%(runtime_ids)s::uuid[] IS NULL OR q.runtime_id = ANY(%(runtime_ids)s::uuid[])) AND {_FRESH}
     AND NOT {HOLD.format(row="q")}
     AND (q.issue_id IS NULL OR (
       NOT EXISTS (SELECT 1 FROM agent_task_queue p WHERE p.issue_id = q.issue_id AND p.agent_id = q.agent_id
                    AND p.status IN ('queued', 'dispatched'))
       AND NOT EXISTS (SELECT 1 FROM agent_task_queue d WHERE d.issue_id = q.issue_id AND d.agent_id = q.agent_id
                    AND d.status = 'deferred' AND d.fire_at <= {NOW}
                    AND (-d.priority, d.created_at, d.id) < (-q.priority, q.created_at, q.id))))"""
_PROMOTE = Transition("promote", where=PROMOTE_WHERE, joins="JOIN agent_runtime m ON m.id = q.runtime_id", batch=True)


def promote(
    *, runtime_ids: Sequence[UUID] | None, actor: str, limit: int = 500, now: datetime | None = None
) -> list[Moved]:
    """Queue deferred rows that are due on fresh runtimes, whose slot is free and whose old process is gone.

    Raises IntegrityError when an enqueue that is not committed yet takes the slot first: the caller tries again later.
    """
    ids = None if runtime_ids is None else list(runtime_ids)
    return _apply(_PROMOTE, actor, now, runtime_ids=ids, freshness=conf.RUNTIME_FRESHNESS, limit=limit)


# ------------------------------------------------------------------------------------------ from claim to start

_REQUEUE = Transition(
    "requeue",
    {
        "claim_token": "NULL::uuid",
        "dispatched_at": "NULL::timestamptz",
        "lease_extensions": "0",
        "delivered_comment_ids": "'{}'::uuid[]",
        **_NO_LEASE,
    },
    guard="t.claim_token = %(claim_token)s::uuid AND t.started_at IS NULL",
)


def requeue(
    task_id: UUID, *, claim_token: UUID, reason: str, actor: str = "server", now: datetime | None = None
) -> Moved | None:
    """Put back a delivery whose answer could not be built. `deliveries` stays counted, so an unbuildable head ends."""
    return _one(_REQUEUE, actor, now, task_id=task_id, claim_token=claim_token, reason=reason)


_RECORD_DELIVERY = Transition(
    "record_delivery",
    {"delivered_comment_ids": "%(comment_ids)s::uuid[]"},
    guard="t.claim_token = %(claim_token)s::uuid AND t.started_at IS NULL",
)


def record_delivery(
    task_id: UUID, *, claim_token: UUID, comment_ids: Sequence[UUID], now: datetime | None = None
) -> Moved | None:
    """Note the comments whose text this delivery's answer really carries; replaces what an earlier delivery noted."""
    ids = list(comment_ids)
    return _one(_RECORD_DELIVERY, "server", now, task_id=task_id, claim_token=claim_token, comment_ids=ids)


_RENEW = Transition(
    "renew_lease",
    {"prepare_lease_expires_at": LEASE, "lease_extensions": "t.lease_extensions + 1"},
    guard=f"{FENCE} AND t.runtime_id = %(runtime_id)s AND t.started_at IS NULL",
)


def renew_lease(
    task_id: UUID, *, runtime_id: UUID, claim_token: UUID | None, actor: str, now: datetime | None = None
) -> Moved | None:
    """Extend the prepare lease of a delivery to now + `PREPARE_LEASE` seconds."""
    lease = conf.PREPARE_LEASE
    return _one(_RENEW, actor, now, task_id=task_id, runtime_id=runtime_id, claim_token=claim_token, lease=lease)


_PARK = Transition(
    "park",
    {
        "wait_reason": "%(wait_reason)s::text",
        "prepare_lease_expires_at": LEASE,
        "lease_extensions": "t.lease_extensions + 1",
    },
    guard=FENCE,
)


def park(
    task_id: UUID, *, claim_token: UUID | None, wait_reason: str, actor: str, now: datetime | None = None
) -> Moved | None:
    """The daemon waits for a local directory; the lease runs on."""
    lease = conf.PREPARE_LEASE
    return _one(_PARK, actor, now, task_id=task_id, claim_token=claim_token, wait_reason=wait_reason, lease=lease)


_START = Transition(
    "start",
    {"started_at": NOW, "wait_reason": "NULL::text", **_NO_LEASE},
    guard=f"{FENCE} AND t.started_at IS NULL",
)


def start(task_id: UUID, *, claim_token: UUID | None, actor: str, now: datetime | None = None) -> Moved | None:
    """The commit point of a delivery: preparation is over and the agent may be launched, once."""
    return _one(_START, actor, now, task_id=task_id, claim_token=claim_token)


_PIN = Transition(
    "pin_session",
    {
        "session_id": "coalesce(%(session_id)s::text, t.session_id)",
        "work_dir": "coalesce(%(work_dir)s::text, t.work_dir)",
    },
    guard=f"{FENCE} AND (t.status <> 'cancelled' OR t.session_id IS NULL)",
)


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
    return _one(_PIN, actor, now, task_id=task_id, claim_token=claim_token, session_id=session_id, work_dir=work_dir)


# ------------------------------------------------------------------------------------------------------- the ends

_REPORTED = {
    "completed_at": NOW,
    "session_id": "CASE WHEN NOT %(session_rollout_missing)s THEN coalesce(%(session_id)s::text, t.session_id) END",
    "session_rollout_missing": "%(session_rollout_missing)s::boolean",
    "retired_session_id": "coalesce(%(retired_session_id)s::text, t.retired_session_id)",
    "work_dir": "coalesce(%(work_dir)s::text, t.work_dir)",
    "durable_work_dir": "coalesce(%(durable_work_dir)s::text, t.durable_work_dir)",
    "branch_name": "coalesce(%(branch_name)s::text, t.branch_name)",
    **_NO_LEASE,
}


@dataclass(frozen=True)
class Report:
    """What a daemon says at the end about where the work and the conversation are; None leaves a value as it was."""

    session_id: str | None = None
    retired_session_id: str | None = None
    session_rollout_missing: bool = False
    work_dir: str | None = None
    durable_work_dir: str | None = None
    branch_name: str | None = None


_COMPLETE = Transition("complete", {**_REPORTED, "result": "%(result)s::jsonb"}, guard=FENCE)


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
    return _one(_COMPLETE, actor, now, task_id=task_id, claim_token=claim_token, result=body, **asdict(report))


_FAIL = Transition(
    "fail",
    {
        **_REPORTED,
        "error": "%(error)s::text",
        "failure_reason": "%(reason)s::text",
        "not_retried_because": "%(not_retried_because)s::text",
    },
    guard=FENCE,
)


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
        _FAIL,
        actor,
        now,
        task_id=task_id,
        claim_token=claim_token,
        reason=reason,
        error=error,
        not_retried_because=not_retried_because,
        **asdict(report or Report()),
    )


_THESE = "(%(task_ids)s::uuid[] IS NULL OR q.id = ANY(%(task_ids)s::uuid[]))"
"""SQL: a sweep that looked before it acts names what it saw; the rule is tested again all the same."""


def _ids(task_ids: Sequence[UUID] | None) -> list[UUID] | None:
    return None if task_ids is None else list(task_ids)


def _swept(verb: str, where: str, *, hold: str | None = None, joins: str = "") -> Transition:
    """A server-side failure of a batch: `reason` and `error` are given, `hold` marks a process that may still live."""
    sets = {
        "completed_at": NOW,
        "error": "%(error)s::text",
        "failure_reason": "%(reason)s::text",
        "wait_reason": "NULL::text",
        **_NO_LEASE,
    }
    if hold is not None:
        sets["stop_pending_since"] = hold
    return Transition(verb, sets, where=f"({where}) AND {_THESE}", joins=joins, batch=True)


_RECOVER = _swept(
    "recover_orphan",
    "q.status IN ('dispatched', 'waiting_local_directory', 'running') "
    "AND (%(runtime_id)s::uuid IS NULL OR q.runtime_id = %(runtime_id)s::uuid) "
    "AND (%(claim_tokens)s::uuid[] IS NULL OR q.claim_token = ANY(%(claim_tokens)s::uuid[]))",
)


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
        _RECOVER,
        actor,
        now,
        runtime_id=runtime_id,
        task_ids=_ids(task_ids),
        claim_tokens=None if claim_tokens is None else list(claim_tokens),
        error=error,
        reason="runtime_recovery",
        limit=limit,
    )


LEASE_OVER = f"q.prepare_lease_expires_at <= {NOW}"
ABSENT = f"(m.id IS NULL OR coalesce(m.last_seen_at, m.created_at) < {NOW} - make_interval(secs => %(grace)s))"
TIME_OUT_WHERE = f"""(
    (q.status IN ('dispatched', 'waiting_local_directory') AND {LEASE_OVER}
      AND (q.lease_extensions > 0 OR q.dispatched_at <= {NOW} - make_interval(secs => %(dispatch_timeout)s)))
    OR (q.status = 'dispatched' AND q.deliveries >= %(max_deliveries)s AND {LEASE_OVER}
      AND q.dispatched_at <= {NOW} - make_interval(secs => %(recovery_window)s))
    OR (q.status = 'running' AND q.started_at <= {NOW} - make_interval(secs => %(backstop)s) AND {ABSENT}))"""
"""D3b, the dispatch backstop, the last delivery lost, and D4: the running backstop needs a lost machine too."""

_TIME_OUT = _swept(
    "time_out",
    f"q.status IN ('dispatched', 'waiting_local_directory', 'running') AND {TIME_OUT_WHERE}",
    hold=f"CASE WHEN t.lease_extensions > 0 OR t.status <> 'dispatched' THEN {NOW} END",
    joins="LEFT JOIN agent_runtime m ON m.id = q.runtime_id",
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
    return _sweep(_TIME_OUT, "timeout", error, actor, task_ids, limit, now)


LOST_WHERE = f"""q.status IN ('dispatched', 'waiting_local_directory', 'running') AND m.status = 'offline'
  AND coalesce(m.last_seen_at, m.created_at) < {NOW} - make_interval(secs => %(grace)s)"""
_LOSE = _swept("lose_runtime", LOST_WHERE, hold=NOW, joins="JOIN agent_runtime m ON m.id = q.runtime_id")


def lose_runtime(
    *,
    error: str,
    actor: str,
    task_ids: Sequence[UUID] | None = None,
    limit: int = 500,
    now: datetime | None = None,
) -> list[Moved]:
    """Fail what a runtime held that has been silent for the whole reconnect grace (D3c)."""
    return _sweep(_LOSE, "runtime_offline", error, actor, task_ids, limit, now)


EXPIRED_WHERE = f"""q.status = 'queued' AND q.retry_of_task_id IS NULL
  AND q.created_at <= {NOW} - make_interval(secs => %(queue_ttl)s)"""
_EXPIRE_QUEUED = _swept("expire_queued", EXPIRED_WHERE)


def expire_queued(
    *,
    error: str,
    actor: str,
    task_ids: Sequence[UUID] | None = None,
    limit: int = 500,
    now: datetime | None = None,
) -> list[Moved]:
    """Fail rows that waited past the queue's time to live; retries are exempt."""
    return _sweep(_EXPIRE_QUEUED, "queued_expired", error, actor, task_ids, limit, now)


EXPIRED_DEFERRED_WHERE = f"""q.status = 'deferred' AND q.retry_of_task_id IS NOT NULL
  AND q.fire_at <= {NOW} - make_interval(secs => %(grace)s) AND NOT ({_FRESH})"""
_EXPIRE_DEFERRED = _swept(
    "expire_deferred", EXPIRED_DEFERRED_WHERE, joins="JOIN agent_runtime m ON m.id = q.runtime_id"
)


def expire_deferred(
    *,
    error: str,
    actor: str,
    task_ids: Sequence[UUID] | None = None,
    limit: int = 500,
    now: datetime | None = None,
) -> list[Moved]:
    """Fail retries whose runtime did not come back within the reconnect grace after their time."""
    return _sweep(_EXPIRE_DEFERRED, "runtime_reconnect_timeout", error, actor, task_ids, limit, now)


_CANCEL_SETS = {
    "completed_at": NOW,
    "wait_reason": "NULL::text",
    "failure_reason": "%(failure_reason)s::text",
    "error": "%(error)s::text",
    "stop_pending_since": _MAY_LIVE,
    "chat_finalize_deferred_at": f"CASE WHEN %(defer_chat)s AND t.chat_session_id IS NOT NULL THEN {NOW} END",
    **_NO_LEASE,
}
_CANCEL = Transition(
    "cancel",
    _CANCEL_SETS,
    where="q.id = ANY(%(task_ids)s::uuid[])",
    guard="%(only)s::text[] IS NULL OR t.status = ANY(%(only)s::text[])",
)


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
        _CANCEL,
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

_CONFIRM_STOP = Transition(
    "confirm_stop",
    {
        "stopped_at": f"coalesce(t.stopped_at, {NOW})",
        "stop_pending_since": "NULL::timestamptz",
        "branch_name": "CASE WHEN t.status = 'cancelled' THEN coalesce(t.branch_name, %(branch_name)s::text) "
        "ELSE t.branch_name END",
        "durable_work_dir": "CASE WHEN t.status = 'cancelled' THEN coalesce(t.durable_work_dir, "
        "%(durable_work_dir)s::text) ELSE t.durable_work_dir END",
        "error": "CASE WHEN t.status = 'cancelled' THEN coalesce(t.error, %(error)s::text) ELSE t.error END",
        "failure_reason": "CASE WHEN t.status = 'cancelled' THEN coalesce(t.failure_reason, %(failure_reason)s::text) "
        "ELSE t.failure_reason END",
    },
    guard=f"{FENCE} AND (t.stopped_at IS NULL OR t.stop_pending_since IS NOT NULL)",
)


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
        _CONFIRM_STOP,
        actor,
        now,
        task_id=task_id,
        claim_token=claim_token,
        branch_name=branch_name,
        durable_work_dir=durable_work_dir,
        error=error,
        failure_reason=failure_reason,
    )


_RELEASE_HOLD = Transition(
    "release_hold",
    {"stop_pending_since": "NULL::timestamptz"},
    guard="t.stop_pending_since IS NOT NULL",
    where="q.id = ANY(%(task_ids)s::uuid[])",
)


def release_hold(task_ids: Sequence[UUID], *, reason: str, actor: str, now: datetime | None = None) -> list[Moved]:
    """Let work of the same key pass again: the old process is known, or long enough presumed, to be gone."""
    return _apply(_RELEASE_HOLD, actor, now, task_ids=list(task_ids), reason=reason)


_SETTLE_CHAT = Transition(
    "settle_chat",
    {"chat_finalize_deferred_at": "NULL::timestamptz"},
    guard="t.chat_finalize_deferred_at IS NOT NULL",
)


def settle_chat(task_id: UUID, *, actor: str, now: datetime | None = None) -> Moved | None:
    """Take the marker of a cancelled chat whose ending is not written yet; the one that gets the row writes it."""
    return _one(_SETTLE_CHAT, actor, now, task_id=task_id)


_EXPLAIN_NO_RETRY = Transition("explain_no_retry", {"not_retried_because": "%(because)s::text"})


def explain_no_retry(
    task_id: UUID, *, because: str, actor: str = "server", now: datetime | None = None
) -> Moved | None:
    """Say on a failed row why it got no retry."""
    return _one(_EXPLAIN_NO_RETRY, actor, now, task_id=task_id, because=because)


_EXPLAIN_NO_RETRIES = Transition(
    "explain_no_retry",
    {"not_retried_because": "%(because)s::jsonb ->> t.id::text"},
    where="q.id = ANY(%(task_ids)s::uuid[])",
)


def explain_no_retries(
    because: Mapping[UUID, str], *, actor: str = "server", now: datetime | None = None
) -> list[Moved]:
    """Say on each of many failed rows why it got no retry, in one statement."""
    texts = json.dumps({str(task_id): text for task_id, text in because.items()})
    return _apply(_EXPLAIN_NO_RETRIES, actor, now, task_ids=list(because), because=texts)
