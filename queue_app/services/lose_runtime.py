"""What a machine held that has been silent for the whole reconnect grace (D3c)."""

from __future__ import annotations

from datetime import datetime

from queue_app import transitions
from queue_app.services import sweeping
from queue_app.services.rules import Due, Rule, look
from queue_app.sql import edges

ERROR = "the machine has been silent for too long"

RULE = Rule(
    name="lose_runtime",
    where=edges.LOST_WHERE,
    text="'held by a machine that is gone'",
    since="coalesce(m.last_seen_at, m.created_at)",
    threshold="%(grace)s",
    joins="JOIN agent_runtime m ON m.id = q.runtime_id",
)


def due(now: datetime | None = None) -> list[Due]:
    """What `run` would act on."""
    return look(RULE, now=now)


def run(now: datetime | None = None) -> int:
    """Fail them with `runtime_offline`; the retry waits for the machine."""
    return sweeping.fail_due(RULE, transitions.lose_runtime, "lose_runtime", ERROR, now=now)
