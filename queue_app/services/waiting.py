"""Why open tasks are not running: for each the rule that holds it, since when, what lies in the way and what is next.

The rules of the claim are its own predicate objects, evaluated on each row, so this cannot say anything else than the
claim does. One statement for any number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connection

from queue_app import transitions
from queue_app.conf import conf
from queue_app.domain import predicates
from queue_app.domain.predicates import PREDICATES, Predicate
from queue_app.domain.states import PREPARING, WAITING, Status
from queue_app.sql.statements import NOW

WINDOW: Final = 1000
"""Most rows that are looked at in one go, the oldest first."""

_ASKED: Final = tuple(p for p in PREDICATES if not p.relative and p is not predicates.TASK_QUEUED)
_HOLES: Final = {
    "now": NOW,
    "freshness": "%(freshness)s",
    "active": predicates.ACTIVE_ROWS,
    "held": predicates.HELD_ROWS,
}
_VERDICTS: Final = ",\n       ".join(f"({p.sql.format(**_HOLES)}) AS p_{p.name}" for p in _ASKED)
_STATUSES: Final = sorted(WAITING | PREPARING)
_PART: Final = """(SELECT * FROM agent_task_queue t
   WHERE t.status = '{status}' AND (%(ids)s::uuid[] IS NULL OR t.id = ANY(%(ids)s::uuid[]))
     AND (%(runtime)s::uuid IS NULL OR t.runtime_id = %(runtime)s::uuid)
     AND (%(agent)s::uuid IS NULL OR t.agent_id = %(agent)s::uuid)
     AND (%(after_at)s::timestamptz IS NULL
          OR (t.created_at, t.id) > (%(after_at)s::timestamptz, %(after_id)s::uuid))
   ORDER BY t.created_at, t.id LIMIT %(limit)s)"""
_SQL: Final = f"""
WITH q AS MATERIALIZED (
  SELECT * FROM ({" UNION ALL ".join(_PART.format(status=status) for status in _STATUSES)}) parts
   ORDER BY created_at, id LIMIT %(limit)s
)
SELECT q.id, q.status, q.kind, q.created_at, q.fire_at, q.dispatched_at, q.prepare_lease_expires_at, q.priority,
       q.attempt, q.deliveries, q.lease_extensions, q.retry_of_task_id, q.wait_reason, q.issue_id, q.agent_id,
       q.runtime_id, {NOW} AS now, a.name AS agent_name, a.paused_at AS agent_paused_at,
       a.paused_until AS agent_paused_until, a.archived_at AS agent_archived_at, m.last_seen_at, m.slots,
       coalesce(nullif(m.custom_name, ''), m.name) AS runtime_name, m.paused_at AS runtime_paused_at,
       m.paused_until AS runtime_paused_until, w.issue_prefix || '-' || i.number AS issue_key, i.title AS issue_title,
       k.id AS sibling_id, k.dispatched_at AS sibling_since, h.id AS held_id, h.stop_pending_since AS held_since,
       s.id AS slot_id, s.created_at AS slot_since, c.newest AS cap_since, {_VERDICTS}
  FROM q
  JOIN agent a ON a.id = q.agent_id
  JOIN workspace w ON w.id = q.workspace_id
  LEFT JOIN agent_runtime m ON m.id = q.runtime_id
  LEFT JOIN issue i ON i.id = q.issue_id
  LEFT JOIN LATERAL (SELECT x.id, x.dispatched_at FROM {predicates.ACTIVE_ROWS} x
     WHERE x.agent_id = q.agent_id AND x.serial_key = q.serial_key AND x.id <> q.id LIMIT 1) k ON true
  LEFT JOIN LATERAL (SELECT x.id, x.stop_pending_since FROM {predicates.HELD_ROWS} x
     WHERE x.runtime_id = q.runtime_id AND x.agent_id = q.agent_id
       AND (x.serial_key = q.serial_key OR (x.serial_key IS NULL AND q.parent_task_id = x.id))
     ORDER BY x.stop_pending_since LIMIT 1) h ON true
  LEFT JOIN LATERAL (SELECT x.id, x.created_at FROM agent_task_queue x
     WHERE q.status = 'deferred' AND x.issue_id = q.issue_id AND x.agent_id = q.agent_id AND x.id <> q.id
       AND x.status IN ('queued', 'dispatched') LIMIT 1) s ON true
  LEFT JOIN LATERAL (SELECT max(x.dispatched_at) AS newest FROM {predicates.ACTIVE_ROWS} x
     WHERE x.agent_id = q.agent_id) c ON true
 ORDER BY q.created_at, q.id
"""

# Which of the row's times says since when a predicate has been failing; a row cannot wait longer than it exists.
_SINCE: Final[Mapping[str, str]] = {
    predicates.RUNTIME_ONLINE.name: "last_seen_at",
    predicates.RUNTIME_FRESH.name: "last_seen_at",
    predicates.RUNTIME_NOT_PAUSED.name: "runtime_paused_at",
    predicates.AGENT_NOT_ARCHIVED.name: "agent_archived_at",
    predicates.AGENT_NOT_PAUSED.name: "agent_paused_at",
    predicates.AGENT_BELOW_CAP.name: "cap_since",
    predicates.KEY_FREE.name: "sibling_since",
    predicates.NOTHING_STOPPING.name: "held_since",
}


@dataclass(frozen=True)
class Rule:
    """What holds a task: a stable name, the state of affairs and what would change it, as sentences."""

    name: str
    text: str
    change: str


CLAIMABLE: Final = Rule(
    "claimable", "nothing: its daemon may take it", "its daemon asks the next time, with a free slot"
)
NOT_DUE: Final = Rule("not_due", "its time has not come yet", "the time comes")
SLOT_TAKEN: Final = Rule(
    "slot_taken", "another task of this issue and agent is about to run", "that task starts or ends"
)
DUE: Final = Rule("due", "it is due and nothing lies in its way", "the next sweep, or the next claim, queues it")
DELIVERED: Final = Rule(
    "delivered", "it was given to its daemon, which has not confirmed it yet", "the daemon confirms or starts it"
)
PREPARING_NOW: Final = Rule("preparing", "its daemon prepares the run", "the preparation ends")
LOCAL_DIRECTORY: Final = Rule(
    "local_directory", "its daemon waits for a directory that is in use", "the directory becomes free"
)


@dataclass(frozen=True)
class Blocker:
    """The object in the way: kind (`task`, `agent`, `runtime`), id and a name for people."""

    kind: str
    id: UUID
    label: str


@dataclass(frozen=True)
class Waiting:
    """One task that does not run. `also` names further rules that hold it; `next_at` is when `next_step` happens."""

    row: Mapping[str, Any]
    rule: Rule
    since: datetime
    next_step: str
    next_at: datetime | None
    blocker: Blocker | None
    also: tuple[str, ...] = ()


def listing(
    *,
    runtime_id: UUID | None = None,
    agent_id: UUID | None = None,
    ids: Iterable[UUID] | None = None,
    after: tuple[datetime, UUID] | None = None,
    limit: int = WINDOW,
    now: datetime | None = None,
) -> list[Waiting]:
    """Open tasks that do not run, the oldest first, at most `limit` and those after (created_at, id) `after`."""
    params = {
        **transitions.window_params(),
        "now": now,
        "ids": None if ids is None else list(ids),
        "runtime": runtime_id,
        "agent": agent_id,
        "after_at": after[0] if after else None,
        "after_id": after[1] if after else None,
        "limit": min(limit, WINDOW),
    }
    with connection.cursor() as cursor:
        cursor.execute(_SQL, params)
        names = [column.name for column in cursor.description or ()]
        return [explain(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]


def of(task_id: UUID, now: datetime | None = None) -> Waiting | None:
    """Why one task does not run; None when it runs or has ended."""
    found = listing(ids=[task_id], limit=1, now=now)
    return found[0] if found else None


def explain(row: Mapping[str, Any]) -> Waiting:
    """The explanation of one row of the statement above."""
    failing = [p for p in _ASKED if not row[f"p_{p.name}"]]
    if row["status"] == Status.QUEUED:
        return _queued(row, failing)
    if row["status"] == Status.DEFERRED:
        return _deferred(row, failing)
    return _with_daemon(row)


def _queued(row: Mapping[str, Any], failing: list[Predicate]) -> Waiting:
    first = failing[0] if failing else None
    step, at = _next(row, first)
    if first is None:
        return Waiting(row, CLAIMABLE, row["created_at"], step, at, None)
    also = tuple(p.blocked for p in failing[1:])
    return Waiting(row, _rule(first), _since(row, first), step, at, _blocker(row, first), also)


def _rule(predicate: Predicate) -> Rule:
    return Rule(predicate.name, predicate.blocked, predicate.change)


def _since(row: Mapping[str, Any], predicate: Predicate) -> datetime:
    created: datetime = row["created_at"]
    found = row[_SINCE[predicate.name]] if predicate.name in _SINCE else None
    return max(created, found) if found else created


def _blocker(row: Mapping[str, Any], predicate: Predicate) -> Blocker | None:
    if predicate is predicates.KEY_FREE and row["sibling_id"]:
        return Blocker("task", row["sibling_id"], "the task at work")
    if predicate is predicates.NOTHING_STOPPING and row["held_id"]:
        return Blocker("task", row["held_id"], "the task that is being stopped")
    if predicate.scope == predicates.Scope.RUNTIME:
        return Blocker("runtime", row["runtime_id"], row["runtime_name"])
    return Blocker("agent", row["agent_id"], row["agent_name"])


def _next(row: Mapping[str, Any], first: Predicate | None) -> tuple[str, datetime | None]:
    """What happens to a queued row by itself, if nobody does anything."""
    if first is predicates.RUNTIME_NOT_PAUSED and row["runtime_paused_until"]:
        return "the pause of the runtime ends", row["runtime_paused_until"]
    if first is predicates.AGENT_NOT_PAUSED and row["agent_paused_until"]:
        return "the pause of the agent ends", row["agent_paused_until"]
    if first is predicates.NOTHING_STOPPING and row["held_since"]:
        return "the stop counts as done at the latest", row["held_since"] + timedelta(seconds=conf.STOP_PENDING_LIMIT)
    if first is None:
        return "its daemon takes it at its next poll", None
    if first in (predicates.KEY_FREE, predicates.AGENT_BELOW_CAP):
        return "it is taken when that ends", None
    if row["retry_of_task_id"]:
        return "nothing by itself", None
    return "it fails as queued_expired", row["created_at"] + timedelta(seconds=conf.QUEUE_TTL)


_FOR_PROMOTION: Final = (predicates.RUNTIME_ONLINE, predicates.RUNTIME_FRESH, predicates.NOTHING_STOPPING)


def _deferred(row: Mapping[str, Any], failing: list[Predicate]) -> Waiting:
    if row["fire_at"] > row["now"]:
        return Waiting(row, NOT_DUE, row["created_at"], "it is queued", row["fire_at"], None)
    first = next((p for p in failing if p in _FOR_PROMOTION), None)
    if first is not None:
        return Waiting(row, _rule(first), _since(row, first), *_next_deferred(row, first), _blocker(row, first))
    if row["slot_id"]:
        blocker = Blocker("task", row["slot_id"], "the task in front")
        since = max(row["created_at"], row["slot_since"])
        return Waiting(row, SLOT_TAKEN, since, "it is queued when that starts or ends", None, blocker)
    return Waiting(row, DUE, row["fire_at"], "a sweep queues it", row["now"] + _sweep(), None)


def _sweep() -> timedelta:
    return timedelta(seconds=conf.SWEEP_INTERVAL)


def _next_deferred(row: Mapping[str, Any], first: Predicate) -> tuple[str, datetime | None]:
    if first is predicates.NOTHING_STOPPING:
        return _next(row, first)
    if row["retry_of_task_id"]:
        limit = row["fire_at"] + timedelta(seconds=conf.RUNTIME_RECONNECT_GRACE)
        return "it fails as runtime_reconnect_timeout", limit
    return "it is queued when the runtime is back", None


def _with_daemon(row: Mapping[str, Any]) -> Waiting:
    lease, given = row["prepare_lease_expires_at"], row["dispatched_at"]
    blocker = Blocker("runtime", row["runtime_id"], row["runtime_name"])
    if row["status"] == Status.WAITING_LOCAL_DIRECTORY:
        rule = Rule(LOCAL_DIRECTORY.name, row["wait_reason"] or LOCAL_DIRECTORY.text, LOCAL_DIRECTORY.change)
        return Waiting(row, rule, given, "it fails as timeout unless the lease is renewed", lease, blocker)
    if row["lease_extensions"]:
        step = "it fails as timeout unless the lease is renewed"
        return Waiting(row, PREPARING_NOW, given, step, lease, blocker)
    again = max(lease, given + timedelta(seconds=conf.CLAIM_RECOVERY_WINDOW))
    last = row["deliveries"] >= conf.MAX_DELIVERIES
    step = "it fails as timeout" if last else "it is delivered once more, at the next poll"
    return Waiting(row, DELIVERED, given, step, again, blocker)
