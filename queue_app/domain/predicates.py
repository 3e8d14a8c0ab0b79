"""What must hold for a queued task to be claimed, as data.

Each predicate is one object: the claim's SQL is generated from its fragment, the explainer evaluates the same fragment
for one row, and people read its words. So what the product says about a waiting task cannot drift from what it does.

A fragment is true when the predicate holds. It speaks of `m` (the runtime), `a` (the agent) and `q` (the task), and
leaves holes for what differs between its users: `{now}`, `{freshness}`, `{daemon}`, `{workspaces}`, and the relations
`{active}` (rows that occupy an agent) and `{held}` (ended rows whose process may live), which the claim reads once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from queue_app.domain.states import ACTIVE


class Scope(StrEnum):
    """What a predicate speaks about; the claim tests them in this order."""

    RUNTIME = "runtime"
    AGENT = "agent"
    TASK = "task"


@dataclass(frozen=True)
class Predicate:
    """One condition of the claim. `name` is stable and travels; `blocked` and `change` are sentences for people.

    `refusal` is the claim decision of a runtime that fails it (runtime predicates only). A predicate that is
    `relative` speaks about who asks, so it has no meaning for a task alone and the explainer leaves it out.
    """

    name: str
    scope: Scope
    sql: str
    blocked: str
    change: str
    refusal: str = ""
    relative: bool = False


_ACTIVE_SQL = ", ".join(f"'{status}'" for status in sorted(ACTIVE))
ACTIVE_ROWS: Final = f"(SELECT x.* FROM agent_task_queue x WHERE x.status IN ({_ACTIVE_SQL}))"
HELD_ROWS: Final = "(SELECT x.* FROM agent_task_queue x WHERE x.stop_pending_since IS NOT NULL)"
ORDER: Final = ("priority DESC", "created_at", "id")
"""The order of a runtime's work."""


def _pause(row: str) -> str:
    return f"({row}.paused_at IS NULL OR coalesce({row}.paused_until <= {{now}}, false))"


RUNTIME_IN_SCOPE = Predicate(
    "runtime_in_scope",
    Scope.RUNTIME,
    "m.workspace_id = ANY({workspaces})",
    "the runtime belongs to a workspace that the caller may not see",
    "claim with a token of that workspace",
    refusal="runtime_foreign",
    relative=True,
)
RUNTIME_OF_DAEMON = Predicate(
    "runtime_of_daemon",
    Scope.RUNTIME,
    "({daemon} IS NULL OR m.daemon_id = '' OR m.daemon_id = {daemon})",
    "the runtime is bound to another daemon",
    "claim from the daemon that registered the runtime",
    refusal="runtime_foreign",
    relative=True,
)
RUNTIME_ONLINE = Predicate(
    "runtime_online",
    Scope.RUNTIME,
    "m.status = 'online'",
    "the runtime is offline",
    "start the daemon on that machine, or move the agent to another runtime",
    refusal="runtime_offline",
)
RUNTIME_FRESH = Predicate(
    "runtime_fresh",
    Scope.RUNTIME,
    "coalesce(m.last_seen_at >= {now} - make_interval(secs => {freshness}), false)",
    "the runtime has not been heard of for too long",
    "the next heartbeat of its daemon; check that machine and its network",
    refusal="runtime_stale",
)
RUNTIME_NOT_PAUSED = Predicate(
    "runtime_not_paused",
    Scope.RUNTIME,
    _pause("m"),
    "the runtime is paused",
    "resume the runtime, or wait until its pause ends",
    refusal="runtime_paused",
)
RUNTIME_HAS_OWNER = Predicate(
    "runtime_has_owner",
    Scope.RUNTIME,
    "m.owner_id IS NOT NULL",
    "the runtime has no owner, so no task token can be made for its runs",
    "register the runtime again from an account that stays",
    refusal="runtime_without_owner",
)
AGENT_NOT_ARCHIVED = Predicate(
    "agent_not_archived", Scope.AGENT, "a.archived_at IS NULL", "the agent is archived", "restore the agent"
)
AGENT_NOT_PAUSED = Predicate(
    "agent_not_paused",
    Scope.AGENT,
    _pause("a"),
    "the agent is paused",
    "resume the agent, or wait until its pause ends",
)
AGENT_BOUND = Predicate(
    "agent_bound",
    Scope.AGENT,
    "a.runtime_id = q.runtime_id",
    "the agent has moved to another runtime since the task was queued",
    "move the task to the agent's runtime, or move the agent back",
)
AGENT_BELOW_CAP = Predicate(
    "agent_below_cap",
    Scope.AGENT,
    "(SELECT count(*) FROM {active} x WHERE x.agent_id = a.id) < a.max_concurrent_tasks",
    "the agent already works on as many tasks as it may",
    "one of the agent's active tasks ends, or its cap is raised",
)
TASK_QUEUED = Predicate(
    "task_queued",
    Scope.TASK,
    "q.status = 'queued'",
    "the task is not queued",
    "a deferred task is queued when its time has come and its slot is free",
)
KEY_FREE = Predicate(
    "key_free",
    Scope.TASK,
    "NOT EXISTS (SELECT 1 FROM {active} x WHERE x.agent_id = q.agent_id AND x.serial_key = q.serial_key)",
    "the agent is already at work on the same issue, chat or schedule",
    "that task ends",
)
NOTHING_STOPPING = Predicate(
    "nothing_stopping",
    Scope.TASK,
    "NOT EXISTS (SELECT 1 FROM {held} h WHERE h.runtime_id = q.runtime_id AND h.agent_id = q.agent_id"
    " AND (h.serial_key = q.serial_key OR (h.serial_key IS NULL AND q.parent_task_id = h.id)))",
    "an older run of the same work was ended by the server and its process may still live on that machine",
    "the daemon confirms the stop, or stays in touch for some minutes",
)

RUNTIME_PREDICATES: Final = (
    RUNTIME_IN_SCOPE,
    RUNTIME_OF_DAEMON,
    RUNTIME_ONLINE,
    RUNTIME_FRESH,
    RUNTIME_NOT_PAUSED,
    RUNTIME_HAS_OWNER,
)
AGENT_PREDICATES: Final = (AGENT_NOT_ARCHIVED, AGENT_NOT_PAUSED, AGENT_BOUND, AGENT_BELOW_CAP)
TASK_PREDICATES: Final = (TASK_QUEUED, KEY_FREE, NOTHING_STOPPING)
PREDICATES: Final = RUNTIME_PREDICATES + AGENT_PREDICATES + TASK_PREDICATES
"""Every predicate, in the order in which an explanation names them."""

NOT_LOCKED_BLOCKED: Final = "another transaction holds the row at this moment"
"""What a claim says about a row that it steps over; only a lock attempt can tell, so it has no fragment."""

REDELIVERABLE: Final = (
    "q.status = 'dispatched' AND q.started_at IS NULL AND q.lease_extensions = 0"
    " AND q.deliveries < {max_deliveries}"
    " AND q.dispatched_at <= {now} - make_interval(secs => {recovery})"
    " AND q.prepare_lease_expires_at <= {now}"
)
"""A delivery counts as lost: never started, never renewed, older than the recovery window, its lease over (D3a)."""

REDELIVERY_MOMENT: Final = "greatest(q.dispatched_at + make_interval(secs => {recovery}), q.prepare_lease_expires_at)"
"""When a delivery that stays silent will be given out again."""


def conjunction(predicates: tuple[Predicate, ...], **holes: str) -> str:
    """The SQL that is true when all of `predicates` hold, its holes filled."""
    return " AND ".join(f"({predicate.sql.format(**holes)})" for predicate in predicates)
