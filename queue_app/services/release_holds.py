"""Old processes that nobody confirmed, on machines that have been fine ever since: their keys may pass again (D3)."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from queue_app import events, transitions
from queue_app.services.rules import BATCH, Due, Rule, look
from queue_app.sql.statements import NOW

_SINCE = "greatest(q.stop_pending_since, m.fresh_since)"
RULE = Rule(
    name="release_holds",
    where=f"""q.stop_pending_since IS NOT NULL AND m.status = 'online' AND m.fresh_since IS NOT NULL
   AND m.last_seen_at >= {NOW} - make_interval(secs => %(freshness)s)
   AND {_SINCE} <= {NOW} - make_interval(secs => %(stop_limit)s)""",
    text="'stop not confirmed on a healthy machine'",
    since=_SINCE,
    threshold="%(stop_limit)s",
    joins="JOIN agent_runtime m ON m.id = q.runtime_id",
)
REASON = "its machine was healthy throughout the limit"


def due(now: datetime | None = None) -> list[Due]:
    """What `run` would act on."""
    return look(RULE, now=now)


def run(now: datetime | None = None) -> int:
    """Lift those holds; each runtime is told to look again. The number lifted."""
    done = 0
    found = due(now)
    while found:
        with transaction.atomic():
            ids = [row.id for row in found]
            rows = transitions.release_hold(ids, reason=REASON, actor="sweep:release_holds", now=now)
            events.announce("release_hold", rows)
        done += len(rows)
        found = look(RULE, now=now, after=found[-1].id) if len(found) == BATCH else []
    return done
