"""Machines that were not heard within the freshness window are offline and get nothing. No task is touched."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db import connection, transaction

from queue_app import events
from queue_app.conf import conf
from queue_app.services import liveness
from queue_app.services.rules import BATCH, Due
from queue_app.sql.statements import NOW

_SILENT = f"""r.status = 'online'
   AND coalesce(r.last_seen_at, r.created_at) < {NOW} - make_interval(secs => %(freshness)s)"""
_LOOK = f"""
SELECT r.id, r.name, coalesce(r.last_seen_at, r.created_at),
       extract(epoch FROM {NOW} - coalesce(r.last_seen_at, r.created_at)) - %(freshness)s
  FROM agent_runtime r WHERE {_SILENT} AND (%(after)s::uuid IS NULL OR r.id > %(after)s::uuid)
 ORDER BY r.id LIMIT %(limit)s
"""
_MARK = f"""
WITH silent AS MATERIALIZED (
  SELECT r.id FROM agent_runtime r WHERE r.id = ANY(%(ids)s::uuid[]) AND {_SILENT} ORDER BY r.id
     FOR NO KEY UPDATE SKIP LOCKED)
UPDATE agent_runtime r SET status = 'offline', fresh_since = NULL, updated_at = now()
  FROM silent s WHERE r.id = s.id
RETURNING r.id, r.workspace_id
"""


def due(now: datetime | None = None, after: UUID | None = None) -> list[Due]:
    """Silent runtimes, without those whose sign of life in Redis says that the table only lags behind."""
    return [row for row in _look(now, after) if row.id not in liveness.alive([row.id])]


def _look(now: datetime | None, after: UUID | None) -> list[Due]:
    window = float(conf.RUNTIME_FRESHNESS)
    with connection.cursor() as cursor:
        cursor.execute(_LOOK, {"now": now, "freshness": window, "after": after, "limit": BATCH})
        found = cursor.fetchall()
    return [Due(row[0], str(row[1]), "runtime not heard", row[2], window, float(row[3])) for row in found]


def run(now: datetime | None = None) -> int:
    """Take them offline; a heartbeat in between keeps its runtime online. The number taken offline."""
    done = 0
    silent = _look(now, None)
    while silent:
        alive = liveness.alive([row.id for row in silent])
        done += _mark([row.id for row in silent if row.id not in alive], now)
        silent = _look(now, silent[-1].id) if len(silent) == BATCH else []
    return done


def _mark(runtime_ids: list[UUID], now: datetime | None) -> int:
    if not runtime_ids:
        return 0
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(_MARK, {"ids": runtime_ids, "now": now, "freshness": conf.RUNTIME_FRESHNESS})
            marked = cursor.fetchall()
        transaction.on_commit(lambda: _tell(marked))
    return len(marked)


def _tell(marked: list[tuple[UUID, UUID]]) -> None:
    liveness.forget([runtime_id for runtime_id, _ in marked])
    for workspace_id in sorted({workspace_id for _, workspace_id in marked}):
        runtimes = [str(runtime_id) for runtime_id, of in marked if of == workspace_id]
        events.publish(workspace_id, "daemon:register", {"action": "stale_sweep", "runtime_ids": runtimes})
