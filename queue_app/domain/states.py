"""The state machine of a task, as data.

Everything that must agree about states reads this file: the transitions build their statements from `EDGES`, the
migration builds the trigger that refuses illegal edges from `LAWFUL_MOVES`, the docs draw their diagram and the tests
make the full state x verb table from it. Nothing else may list states by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """The eight statuses of a task. The values are stored and travel on the wire."""

    QUEUED = "queued"
    DEFERRED = "deferred"
    DISPATCHED = "dispatched"
    WAITING_LOCAL_DIRECTORY = "waiting_local_directory"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Kind(StrEnum):
    """What a task works for. A retry or rerun keeps the kind of the task it repeats."""

    ISSUE = "issue"
    COMMENT = "comment"
    CHAT = "chat"
    QUICK_CREATE = "quick_create"
    AUTOPILOT = "autopilot"


WAITING: Final = frozenset({Status.QUEUED, Status.DEFERRED})
PREPARING: Final = frozenset({Status.DISPATCHED, Status.WAITING_LOCAL_DIRECTORY})
ACTIVE: Final = PREPARING | {Status.RUNNING}
OPEN: Final = WAITING | ACTIVE
TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
PENDING_SLOT: Final = frozenset({Status.QUEUED, Status.DISPATCHED})
"""The statuses that hold the one pending place of an (issue, agent) pair."""


@dataclass(frozen=True)
class Edge:
    """One verb of the state machine.

    `sources` are the only statuses the verb accepts; empty means that it makes the row. `target` is the status after
    it; None leaves the status as it was.
    """

    verb: str
    sources: frozenset[Status]
    target: Status | None
    who: str


def _edge(verb: str, sources: frozenset[Status] | set[Status], target: Status | None, who: str) -> Edge:
    return Edge(verb, frozenset(sources), target, who)


EDGES: Final[dict[str, Edge]] = {
    edge.verb: edge
    for edge in (
        _edge("enqueue", set(), Status.QUEUED, "people, cron, effects"),
        _edge("defer", set(), Status.DEFERRED, "people, cron, effects"),
        _edge("merge", WAITING, None, "people"),
        _edge("reprioritise", WAITING, None, "people"),
        _edge("age", {Status.QUEUED}, None, "sweep"),
        _edge("promote", {Status.DEFERRED}, Status.QUEUED, "sweep, claim"),
        _edge("claim", {Status.QUEUED}, Status.DISPATCHED, "daemon"),
        _edge("redeliver", {Status.DISPATCHED}, Status.DISPATCHED, "daemon"),
        _edge("record_delivery", {Status.DISPATCHED}, None, "server"),
        _edge("requeue", {Status.DISPATCHED}, Status.QUEUED, "server"),
        _edge("renew_lease", PREPARING, None, "daemon"),
        _edge("park", {Status.DISPATCHED}, Status.WAITING_LOCAL_DIRECTORY, "daemon"),
        _edge("start", PREPARING, Status.RUNNING, "daemon"),
        _edge("pin_session", {Status.DISPATCHED, Status.RUNNING, Status.CANCELLED}, None, "daemon"),
        _edge("complete", {Status.RUNNING}, Status.COMPLETED, "daemon"),
        _edge("fail", ACTIVE, Status.FAILED, "daemon, claim-time rejection"),
        _edge("recover_orphan", ACTIVE, Status.FAILED, "daemon start, heartbeat"),
        _edge("time_out", ACTIVE, Status.FAILED, "sweep"),
        _edge("lose_runtime", ACTIVE, Status.FAILED, "sweep"),
        _edge("expire_queued", {Status.QUEUED}, Status.FAILED, "sweep"),
        _edge("expire_deferred", {Status.DEFERRED}, Status.FAILED, "sweep"),
        _edge("cancel", OPEN, Status.CANCELLED, "person, server"),
        _edge("confirm_stop", TERMINAL, None, "daemon"),
        _edge("release_hold", TERMINAL, None, "daemon start, heartbeat, sweep"),
        _edge("settle_chat", {Status.CANCELLED}, None, "cancel-ack, sweep"),
        _edge("explain_no_retry", {Status.FAILED}, None, "server"),
    )
}

LAWFUL_MOVES: Final = frozenset(
    (source, edge.target) for edge in EDGES.values() if edge.target is not None for source in edge.sources
)
"""Every pair of statuses a row may go through. `dispatched -> dispatched` is a redelivery."""


def accepts(verb: str, status: Status) -> bool:
    """Whether `verb` may be applied to a row in `status`, guards of its own aside."""
    return status in EDGES[verb].sources
