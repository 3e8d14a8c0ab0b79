"""Builds the claim's functions from `claim.sql` and the predicates, and the statement that calls them."""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

from queue_app.domain import predicates
from queue_app.domain.history import changes_expression

HOLES: Final = {
    "now": "v_now",
    "freshness": "p_freshness",
    "recovery": "p_recovery",
    "max_deliveries": "p_max_deliveries",
    "daemon": "p_daemon",
    "workspaces": "p_workspaces",
    "active": "act",
    "held": "held",
}
"""How the predicates' holes are filled inside the function; `act` and `held` are read once a round."""

_CHANGED = ("status", "dispatched_at", "prepare_lease_expires_at", "claim_token", "deliveries", "lease_extensions")

_PICK = """
WITH pair AS (
  SELECT * FROM unnest(v_pair_runtimes, v_pair_agents) u(runtime_id, agent_id)
), act AS MATERIALIZED (
  -- OFFSET 0: one probe of task_active an agent, never the whole index
  SELECT x.agent_id, x.serial_key
    FROM (SELECT DISTINCT p.agent_id FROM pair p) d
   CROSS JOIN LATERAL (SELECT t.agent_id, t.serial_key FROM agent_task_queue t
                        WHERE t.agent_id = d.agent_id AND t.status IN ({active}) OFFSET 0) x
), held AS MATERIALIZED (
  SELECT x.*
    FROM pair p
   CROSS JOIN LATERAL (SELECT h.id, h.runtime_id, h.agent_id, h.serial_key FROM agent_task_queue h
                        WHERE h.runtime_id = p.runtime_id AND h.agent_id = p.agent_id
                          AND h.stop_pending_since IS NOT NULL OFFSET 0) x
), free AS MATERIALIZED (
  SELECT q.runtime_id, q.agent_id, a.max_concurrent_tasks - coalesce(k.n, 0) AS n,
         (least(a.max_concurrent_tasks - coalesce(k.n, 0), v_room) + coalesce(k.n, 0)
          + (SELECT count(*) FROM held h WHERE h.runtime_id = q.runtime_id AND h.agent_id = q.agent_id))
         * v_window + cardinality(v_skip) AS width
    FROM pair q
    JOIN agent a ON a.id = q.agent_id
    LEFT JOIN (SELECT x.agent_id, count(*) AS n FROM act x GROUP BY x.agent_id) k ON k.agent_id = a.id
   WHERE {agent}
), skipped AS MATERIALIZED (
  SELECT s.id FROM unnest(v_skip) s(id)
), win AS MATERIALIZED (
  SELECT w.*, f.n
    FROM free f
   CROSS JOIN LATERAL (
     SELECT t.id, t.runtime_id, t.agent_id, t.serial_key, t.parent_task_id, t.priority, t.created_at, t.status
       FROM agent_task_queue t
      WHERE t.status = 'queued' AND t.runtime_id = f.runtime_id AND t.agent_id = f.agent_id
      ORDER BY t.priority DESC, t.created_at, t.id
      LIMIT f.width) w
), unblocked AS (
  SELECT q.*, row_number() OVER (PARTITION BY q.agent_id, coalesce(q.serial_key, q.id::text)
                                 ORDER BY q.priority DESC, q.created_at, q.id) AS sibling
    FROM win q
   WHERE NOT EXISTS (SELECT 1 FROM skipped s WHERE s.id = q.id) AND {task}
), head AS (
  SELECT u.*, row_number() OVER (PARTITION BY u.agent_id ORDER BY u.priority DESC, u.created_at, u.id) AS nth
    FROM unblocked u WHERE u.sibling = 1
), turn AS MATERIALIZED (
  -- caps and keys are done: now runtimes take turns inside each priority
  SELECT h.*, row_number() OVER (PARTITION BY h.runtime_id, h.priority ORDER BY h.created_at, h.id) AS turn
    FROM head h WHERE h.nth <= h.n
), chosen AS MATERIALIZED (
  SELECT t.id, row_number() OVER (ORDER BY t.priority DESC, t.turn, t.created_at, t.id) AS place
    FROM turn t ORDER BY t.priority DESC, t.turn, t.created_at, t.id LIMIT v_room
), mine AS MATERIALIZED (
  SELECT t.id FROM agent_task_queue t
   WHERE t.id = ANY(ARRAY(SELECT c.id FROM chosen c)) AND t.status = 'queued'
     FOR NO KEY UPDATE SKIP LOCKED
)
SELECT coalesce(array_agg(c.id ORDER BY c.place) FILTER (WHERE m.id IS NOT NULL), '{{}}'),
       coalesce(array_agg(c.id) FILTER (WHERE m.id IS NULL), '{{}}'),
       count(*) < v_room AND EXISTS (
         SELECT 1 FROM free f
          WHERE (SELECT count(*) FROM win w WHERE w.runtime_id = f.runtime_id AND w.agent_id = f.agent_id) >= f.width
            AND (SELECT count(*) FROM turn t WHERE t.agent_id = f.agent_id) < f.n)
  INTO v_picked, v_locked_away, v_short
  FROM chosen c LEFT JOIN mine m ON m.id = c.id;
"""

_PROBE = """
WITH win AS MATERIALIZED (
  SELECT w.id
    FROM unnest(v_pair_runtimes, v_pair_agents) p(runtime_id, agent_id)
   CROSS JOIN LATERAL (
     SELECT t.id FROM agent_task_queue t
      WHERE t.status = 'queued' AND t.runtime_id = p.runtime_id AND t.agent_id = p.agent_id
      ORDER BY t.priority DESC, t.created_at, t.id
      LIMIT v_probe) w
), free AS MATERIALIZED (
  SELECT t.id FROM agent_task_queue t
   WHERE t.id = ANY(ARRAY(SELECT w.id FROM win w)) AND t.status = 'queued'
     FOR NO KEY UPDATE SKIP LOCKED
)
SELECT coalesce(array_agg(w.id), '{}') INTO v_locked_away
  FROM win w WHERE NOT EXISTS (SELECT 1 FROM free f WHERE f.id = w.id);
v_skip := '{}';
"""

_OUTCOMES = """
SELECT jsonb_object_agg(v.key, CASE WHEN v.value <> 'ok' THEN jsonb_build_object('outcome', v.value)
         ELSE jsonb_build_object(
           'outcome', CASE WHEN g.again > 0 THEN 'reclaimed_dispatched' WHEN g.n > 0 THEN 'claimed'
                           WHEN v.key::uuid <> ALL(v_pair_runtimes) THEN 'empty_db'
                           WHEN jsonb_array_length(v_tasks) >= p_max THEN 'batch_full' ELSE 'blocked' END,
           'empty', v.key::uuid <> ALL(v_pair_runtimes),
           'workspace_id', r.workspace_id, 'daemon_id', r.daemon_id, 'provider', r.provider,
           'family', f.protocol_family, 'due_now', d.now,
           'due_in', extract(epoch FROM least(d.at, l.at) - v_now)) END)
  FROM jsonb_each_text(v_verdicts) v
  LEFT JOIN agent_runtime r ON r.id = v.key::uuid
  LEFT JOIN runtime_profile f ON f.id = r.profile_id
  LEFT JOIN LATERAL (
    SELECT count(*) AS n, count(*) FILTER (WHERE t.value ->> 'verb' = 'redeliver') AS again
      FROM jsonb_array_elements(v_tasks) t WHERE t.value ->> 'runtime_id' = v.key) g ON v.value = 'ok'
  LEFT JOIN LATERAL (
    SELECT EXISTS (SELECT 1 FROM agent_task_queue q
                    WHERE q.status = 'deferred' AND q.runtime_id = v.key::uuid AND q.fire_at <= v_now AND {held_free}
                      AND (q.issue_id IS NULL OR NOT EXISTS (
                        SELECT 1 FROM agent_task_queue p WHERE p.issue_id = q.issue_id AND p.agent_id = q.agent_id
                           AND p.status IN ('queued', 'dispatched')))) AS now,
           (SELECT q.fire_at FROM agent_task_queue q
             WHERE q.status = 'deferred' AND q.runtime_id = v.key::uuid AND q.fire_at > v_now AND {held_free}
             ORDER BY q.fire_at LIMIT 1) AS at) d ON v.value = 'ok'
  LEFT JOIN LATERAL (
    SELECT min({redelivery}) AS at FROM agent_task_queue q
     WHERE q.runtime_id = v.key::uuid AND q.status = 'dispatched' AND q.started_at IS NULL AND q.lease_extensions = 0
       AND q.deliveries < p_max_deliveries) l ON v.value = 'ok'
"""

_SHARED = """
SELECT jsonb_build_object(
  'agents', (SELECT jsonb_object_agg(a.id, jsonb_build_object(
       'id', a.id, 'workspace_id', a.workspace_id, 'name', a.name, 'instructions', a.instructions,
       'custom_env', a.custom_env, 'custom_args', a.custom_args, 'mcp_config', a.mcp_config, 'model', a.model,
       'thinking_level', a.thinking_level, 'service_tier', a.service_tier, 'runtime_config', a.runtime_config))
     FROM agent a WHERE a.id IN (SELECT (t.value ->> 'agent_id')::uuid FROM jsonb_array_elements(v_tasks) t)),
  'workspaces', (SELECT jsonb_object_agg(w.id, jsonb_build_object(
       'repos', w.repos, 'context', w.context, 'issue_prefix', w.issue_prefix))
     FROM workspace w WHERE w.id IN (SELECT (t.value ->> 'workspace_id')::uuid FROM jsonb_array_elements(v_tasks) t)),
  'issues', (SELECT jsonb_object_agg(i.id, jsonb_build_object('number', i.number, 'title', i.title))
     FROM issue i WHERE i.id IN (SELECT (t.value ->> 'issue_id')::uuid FROM jsonb_array_elements(v_tasks) t)),
  'users', (SELECT jsonb_object_agg(u.id, jsonb_build_object(
       'name', coalesce(nullif(trim(u.first_name || ' ' || u.last_name), ''), u.username), 'email', u.email))
     FROM "user" u WHERE u.id IN (SELECT (t.value ->> 'initiator_user_id')::uuid FROM jsonb_array_elements(v_tasks) t)))
"""


def _verdicts() -> str:
    """The CASE arms that turn the first failing runtime predicate into that runtime's outcome."""
    return " ".join(
        f"WHEN NOT ({predicate.sql.format(**HOLES)}) THEN '{predicate.refusal}'"
        for predicate in predicates.RUNTIME_PREDICATES
    )


def _pieces() -> dict[str, str]:
    held_free = predicates.NOTHING_STOPPING.sql.format(held=predicates.HELD_ROWS)
    return {
        "changes": changes_expression({column: f"n.n_{column}" for column in _CHANGED}),
        "verdicts": _verdicts(),
        "redeliverable": predicates.REDELIVERABLE.format(**HOLES),
        "pick": _PICK.format(
            active=predicates._ACTIVE_SQL,
            agent=predicates.conjunction(predicates.AGENT_PREDICATES, **HOLES),
            task=predicates.conjunction(predicates.TASK_PREDICATES, **HOLES),
        ).strip(),
        "probe": _PROBE.strip(),
        "outcomes": _OUTCOMES.format(
            held_free=held_free, redelivery=predicates.REDELIVERY_MOMENT.format(**HOLES)
        ).strip(),
        "shared": _SHARED.strip(),
    }


def install() -> str:
    """The text that the migration runs: both functions, made anew."""
    pieces = _pieces()
    text = (resources.files("queue_app.sql") / "claim.sql").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda hole: pieces[hole.group(1)], text)


CALL: Final = """
SELECT claim_tasks(%(runtimes)s::uuid[], %(daemon)s::text, %(workspaces)s::uuid[], %(max)s::int, %(hashes)s::text[],
  %(freshness)s::float8, %(recovery)s::float8, %(lease)s::float8, %(token_ttl)s::float8, %(max_deliveries)s::int,
  %(one_by_one)s::boolean, %(now)s::timestamptz)
"""
"""One claim. The answer is one jsonb: `tasks`, `runtimes` (id to outcome), `shared` rows, and the clock it used."""
