"""The auditor: recomputes every task's history and compares it with the row. Reads only.

Checked for each task: its events are numbered 1, 2, 3 …; each hash is that of its content and of the hash before; each
event goes on from the status that the one before left and is an edge of the state machine; number and hash of the last
event are those that the row keeps; and all changes folded in order are the row. So an edit of any column that events
carry is found, and so is an edited, removed, added or reordered event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from queue_app.domain.states import EDGES

BATCH = 500


@dataclass(frozen=True)
class Finding:
    """One thing that does not fit: on which task, which check, where and how."""

    task_id: UUID
    check: str
    detail: str

    def __str__(self) -> str:
        return f"task {self.task_id}: {self.check}: {self.detail}"


@dataclass(frozen=True)
class Batch:
    """The findings among so many tasks."""

    tasks: int
    findings: tuple[Finding, ...]


def _edges() -> str:
    rows = []
    for edge in EDGES.values():
        sources: list[str | None] = [*sorted(edge.sources)] or [None]
        for source in sources:
            target = edge.target or source
            rows.append({"verb": edge.verb, "source": source, "target": target})
    return json.dumps(rows)


_CHECK = """
WITH picked AS MATERIALIZED (
  SELECT q.* FROM agent_task_queue q
   WHERE (%(task_id)s::uuid IS NULL OR q.id = %(task_id)s::uuid)
     AND (%(since)s::timestamptz IS NULL OR q.created_at >= %(since)s::timestamptz)
     AND (%(after)s::uuid IS NULL OR q.id > %(after)s::uuid)
   ORDER BY q.id LIMIT %(limit)s
), lawful AS (
  SELECT * FROM jsonb_to_recordset(%(edges)s::jsonb) AS l(verb text, source text, target text)
), chain AS MATERIALIZED (
  SELECT e.*, row_number() OVER w AS place, lag(e.hash) OVER w AS before, lag(e.to_status) OVER w AS left_at
    FROM task_event e JOIN picked p ON p.id = e.task_id
  WINDOW w AS (PARTITION BY e.task_id ORDER BY e.seq, e.id)
), folded AS (
  SELECT c.task_id, jsonb_fold(c.changes ORDER BY c.seq) AS told, max(c.seq) AS last_seq,
         (array_agg(c.hash ORDER BY c.seq DESC, c.id DESC))[1] AS last_hash
    FROM chain c GROUP BY c.task_id
), compared AS (
  SELECT p.id, p.event_seq, p.event_hash, f.task_id, f.told, f.last_seq, f.last_hash, task_carried(p) AS is
    FROM picked p LEFT JOIN folded f ON f.task_id = p.id
), found AS (
  SELECT c.task_id AS id, c.seq, 'numbering' AS kind, format('event %%s stands at place %%s', c.seq, c.place) AS detail
    FROM chain c WHERE c.seq <> c.place
  UNION ALL
  SELECT c.task_id, c.seq, 'hash', format('event %%s (%%s) is not what was written', c.seq, c.verb)
    FROM chain c
   WHERE c.hash IS DISTINCT FROM task_event_hash(c.before, c.task_id, c.seq, c.verb, c.from_status, c.to_status,
                                                 c.reason, c.attempt, c.claim_token, c.actor, c.at, c.changes)
  UNION ALL
  SELECT c.task_id, c.seq, 'edge', format('event %%s: %%s from %%s to %%s', c.seq, c.verb, c.from_status, c.to_status)
    FROM chain c
   WHERE c.from_status IS DISTINCT FROM c.left_at
      OR NOT EXISTS (SELECT 1 FROM lawful l WHERE l.verb = c.verb AND l.source IS NOT DISTINCT FROM c.from_status
                        AND l.target = c.to_status)
  UNION ALL
  SELECT o.id, 0, 'events', 'there are none' FROM compared o WHERE o.task_id IS NULL
  UNION ALL
  SELECT o.id, o.event_seq, 'last event',
         format('the row knows of %%s events, there are %%s', o.event_seq, o.last_seq)
    FROM compared o WHERE o.task_id IS NOT NULL AND o.event_seq IS DISTINCT FROM o.last_seq
  UNION ALL
  SELECT o.id, o.event_seq, 'last event', 'the row keeps another hash than that of its last event'
    FROM compared o WHERE o.task_id IS NOT NULL AND o.event_hash IS DISTINCT FROM o.last_hash
  UNION ALL
  SELECT o.id, o.event_seq, 'row', format('%%s is %%s, its events say %%s', k.key, k.is, coalesce(k.told, 'nothing'))
    FROM compared o CROSS JOIN LATERAL (
      SELECT i.key, i.value::text AS is, (o.told -> i.key)::text AS told FROM jsonb_each(o.is) i) k
   WHERE o.task_id IS NOT NULL AND k.is IS DISTINCT FROM k.told
)
SELECT 'task' AS kind, p.id, NULL AS check_name, NULL AS detail, 0 AS seq FROM picked p
UNION ALL
SELECT 'finding', f.id, f.kind, f.detail, f.seq FROM found f
 ORDER BY 2, 1 DESC, 5, 3, 4
"""


def verify(*, task_id: UUID | None = None, since: datetime | None = None, limit: int | None = None) -> Iterator[Batch]:
    """Check tasks by id, all or those asked for, at most `limit`; one statement, and so one snapshot, a batch."""
    after: UUID | None = None
    left = limit
    while left is None or left > 0:
        size = BATCH if left is None else min(BATCH, left)
        rows = _rows({"task_id": task_id, "since": since, "after": after, "limit": size, "edges": _edges()})
        tasks = [row[1] for row in rows if row[0] == "task"]
        if not tasks:
            return
        yield Batch(len(tasks), tuple(Finding(row[1], row[2], row[3]) for row in rows if row[0] == "finding"))
        after = tasks[-1]
        left = None if left is None else left - len(tasks)
        if len(tasks) < size:
            return


def _rows(params: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(_CHECK, params)
        return list(cursor.fetchall())
