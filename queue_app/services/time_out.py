"""Preparations that died, deliveries that nobody starts, runs of a machine that is lost for good (D3b, D4)."""

from __future__ import annotations

from datetime import datetime

from queue_app import transitions
from queue_app.services import sweeping
from queue_app.services.rules import Due, Rule, look
from queue_app.sql import edges
from queue_app.sql.statements import NOW

ERROR = "the task was taken but made no progress in time"

_EXTENDED = "q.status <> 'running' AND q.lease_extensions > 0"
_DISPATCH = f"q.status <> 'running' AND q.dispatched_at <= {NOW} - make_interval(secs => %(dispatch_timeout)s)"


def _by_case(extended: str, dispatch: str, lost: str, running: str) -> str:
    return (
        f"CASE WHEN q.status = 'running' THEN {running} WHEN {_EXTENDED} THEN {extended} "
        f"WHEN {_DISPATCH} THEN {dispatch} ELSE {lost} END"
    )


RULE = Rule(
    name="time_out",
    where=f"q.status IN ('dispatched', 'waiting_local_directory', 'running') AND {edges.TIME_OUT_WHERE}",
    text=_by_case(
        "'prepare lease ran out'",
        "'dispatched and never started'",
        "'last delivery was lost'",
        "'running on a machine that is gone'",
    ),
    since=_by_case("q.prepare_lease_expires_at", "q.dispatched_at", "q.dispatched_at", "q.started_at"),
    threshold=_by_case("0", "%(dispatch_timeout)s", "%(recovery_window)s", "%(backstop)s"),
    joins="LEFT JOIN agent_runtime m ON m.id = q.runtime_id",
)


def due(now: datetime | None = None) -> list[Due]:
    """What `run` would act on."""
    return look(RULE, now=now)


def run(now: datetime | None = None) -> int:
    """Fail them with `timeout`; retried by rule. Running rows are never judged by age alone."""
    return sweeping.fail_due(RULE, transitions.time_out, "time_out", ERROR, now=now)
