"""Work that nobody took in time, and retries whose machine did not come back."""

from __future__ import annotations

from datetime import datetime

from queue_app import transitions
from queue_app.services import sweeping
from queue_app.services.rules import Due, Rule, look
from queue_app.sql import edges

QUEUED_ERROR = "no runtime took the task in time"
DEFERRED_ERROR = "the machine did not come back in time for the retry"

QUEUED = Rule(
    name="expire_queued",
    where=edges.EXPIRED_WHERE,
    text="'queued for too long'",
    since="q.created_at",
    threshold="%(queue_ttl)s",
)
DEFERRED = Rule(
    name="expire_deferred",
    where=edges.EXPIRED_DEFERRED_WHERE,
    text="'retry waits for a machine that is gone'",
    since="q.fire_at",
    threshold="%(grace)s",
    joins="JOIN agent_runtime m ON m.id = q.runtime_id",
)


def queued_due(now: datetime | None = None) -> list[Due]:
    """What `run_queued` would act on."""
    return look(QUEUED, now=now)


def run_queued(now: datetime | None = None) -> int:
    """Fail queued rows past `QUEUE_TTL` with `queued_expired`; never retried, and retries themselves are exempt."""
    return sweeping.fail_due(QUEUED, transitions.expire_queued, "expire_queued", QUEUED_ERROR, now=now)


def deferred_due(now: datetime | None = None) -> list[Due]:
    """What `run_deferred` would act on."""
    return look(DEFERRED, now=now)


def run_deferred(now: datetime | None = None) -> int:
    """Fail deferred retries past the reconnect grace with `runtime_reconnect_timeout`; never retried."""
    return sweeping.fail_due(DEFERRED, transitions.expire_deferred, "expire_deferred", DEFERRED_ERROR, now=now)
