"""Waiting raises priority, so that no stream of urgent work keeps anything back for ever (design D7).

Only heads are lifted: for each runtime, agent and priority the oldest row of each key that has nothing active, no more
than the agent could run at once. Lifting whole backlogs would rewrite the hot table without moving anything forward.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from queue_app import events, transitions
from queue_app.conf import conf
from queue_app.services.rules import Due
from queue_app.sql.statements import NOW

FIRST_WINDOW, GROWTH = 256, 16

_GROUPS = f"""
WITH RECURSIVE pairs AS (
  (SELECT q.runtime_id, q.agent_id FROM agent_task_queue q WHERE q.status = 'queued'
    ORDER BY q.runtime_id, q.agent_id LIMIT 1)
  UNION ALL
  SELECT n.runtime_id, n.agent_id FROM pairs p CROSS JOIN LATERAL (
    SELECT q.runtime_id, q.agent_id FROM agent_task_queue q
     WHERE q.status = 'queued' AND (q.runtime_id, q.agent_id) > (p.runtime_id, p.agent_id)
     ORDER BY q.runtime_id, q.agent_id LIMIT 1) n)
SELECT p.runtime_id, p.agent_id, l.priority, a.max_concurrent_tasks
  FROM pairs p JOIN agent a ON a.id = p.agent_id CROSS JOIN generate_series(0, 3) l(priority)
 WHERE EXISTS (SELECT 1 FROM agent_task_queue q WHERE q.status = 'queued' AND q.runtime_id = p.runtime_id
                  AND q.agent_id = p.agent_id AND q.priority = l.priority
                  AND q.created_at <= {NOW} - make_interval(secs => %(step)s))
"""
"""The groups that have anything old enough, found by a loose walk over the claim index."""

_HEADS = f"""
WITH asked AS (
  SELECT * FROM unnest(%(runtimes)s::uuid[], %(agents)s::uuid[], %(priorities)s::int[], %(caps)s::int[])
         WITH ORDINALITY AS g(runtime_id, agent_id, priority, cap, n)
)
SELECT g.n, w.seen, h.id, h.created_at, h.wanted, h.priority, h.base_priority,
       extract(epoch FROM {NOW} - h.created_at)
  FROM asked g
 CROSS JOIN LATERAL (
   SELECT count(*) AS seen FROM (
     SELECT 1 FROM agent_task_queue q WHERE q.status = 'queued' AND q.runtime_id = g.runtime_id
        AND q.agent_id = g.agent_id AND q.priority = g.priority LIMIT %(window)s) s) w
  LEFT JOIN LATERAL (
   SELECT d.id, d.created_at, d.priority, d.base_priority,
          least(4, d.base_priority + floor(extract(epoch FROM {NOW} - d.created_at) / %(step)s)) AS wanted
     FROM (SELECT DISTINCT ON (coalesce(o.serial_key, o.id::text)) o.*
             FROM (SELECT q.id, q.created_at, q.priority, q.base_priority, q.serial_key
                     FROM agent_task_queue q
                    WHERE q.status = 'queued' AND q.runtime_id = g.runtime_id AND q.agent_id = g.agent_id
                      AND q.priority = g.priority
                    ORDER BY q.priority DESC, q.created_at, q.id LIMIT %(window)s) o
            WHERE NOT EXISTS (
                    SELECT 1 FROM agent_task_queue x WHERE x.agent_id = g.agent_id AND x.serial_key = o.serial_key
                       AND x.status IN ('dispatched', 'waiting_local_directory', 'running'))
            ORDER BY coalesce(o.serial_key, o.id::text), o.created_at, o.id) d
    ORDER BY d.created_at, d.id LIMIT g.cap) h ON true
 ORDER BY g.n, h.created_at, h.id
"""


def due(now: datetime | None = None) -> list[Due]:
    """The heads that have waited long enough for their next priority."""
    step = float(conf.AGEING_STEP)
    if step <= 0:
        return []
    groups = _groups(now, step)
    found: list[Due] = []
    window = FIRST_WINDOW
    while groups:
        heads, groups = _heads(groups, window, now, step)
        found.extend(heads)
        window *= GROWTH
    return sorted(found, key=lambda row: row.id)


Group = tuple[UUID, UUID, int, int]


def _groups(now: datetime | None, step: float) -> list[Group]:
    with connection.cursor() as cursor:
        cursor.execute(_GROUPS, {"now": now, "step": step})
        return [(row[0], row[1], row[2], row[3]) for row in cursor.fetchall()]


def _heads(groups: list[Group], window: int, now: datetime | None, step: float) -> tuple[list[Due], list[Group]]:
    """The due heads of the groups, and the groups in whose window keys hid others: those need a larger one."""
    params: dict[str, Any] = {"now": now, "step": step, "window": window}
    for name, column in zip(("runtimes", "agents", "priorities", "caps"), zip(*groups, strict=True), strict=True):
        params[name] = list(column)
    with connection.cursor() as cursor:
        cursor.execute(_HEADS, params)
        rows = cursor.fetchall()
    by_group: dict[int, list[Any]] = {}
    for row in rows:
        by_group.setdefault(row[0], []).append(row)
    heads: list[Due] = []
    again: list[Group] = []
    for number, members in by_group.items():
        group = groups[number - 1]
        taken = [row for row in members if row[2] is not None]
        if len(taken) < group[3] and members[0][1] >= window:
            again.append(group)
            continue
        heads.extend(_as_due(row, step) for row in taken if row[4] > row[5])
    return heads, again


def _as_due(row: Any, step: float) -> Due:
    _, _, task_id, since, wanted, priority, base, waited = row
    threshold = (priority - base + 1) * step
    what = f"priority {priority} to {int(wanted)}"
    return Due(task_id, what, "head waited long enough", since, threshold, float(waited) - threshold)


def run(now: datetime | None = None) -> int:
    """Lift them, by one for every `AGEING_STEP` seconds waited, up to urgent; 0 turns it off. The number lifted."""
    ids = [row.id for row in due(now)]
    done = 0
    for start in range(0, len(ids), 500):
        with transaction.atomic():
            rows = transitions.age(ids[start : start + 500], step=conf.AGEING_STEP, actor="sweep:age", now=now)
            events.announce("age", rows, wakes=False)
        done += len(rows)
    return done
