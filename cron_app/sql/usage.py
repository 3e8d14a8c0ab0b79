"""The hourly sums of token usage. Whole hours are computed anew, so a report that came late or again counts once.

`idx_task_usage_updated` finds what was reported since a moment; usage of an hour was reported in it or later, so the
same index bounds the second read.
"""

from __future__ import annotations

TRY_LOCK = "SELECT pg_try_advisory_xact_lock(4246)"
"""One roll-up at a time, whoever calls it."""

TOUCHED = """
SELECT DISTINCT date_trunc('hour', u.created_at, 'UTC') AS bucket FROM task_usage u
 WHERE (%(since)s::timestamptz IS NULL OR u.updated_at >= %(since)s::timestamptz)
 ORDER BY 1
"""

CLEAR = "DELETE FROM task_usage_hourly WHERE bucket = %(bucket)s"

SUM = """
INSERT INTO task_usage_hourly (bucket, workspace_id, agent_id, runtime_id, provider, model, task_count, input_tokens,
                               output_tokens, cache_read_tokens, cache_write_tokens, cost_usd_ticks)
SELECT %(bucket)s, t.workspace_id, t.agent_id, t.runtime_id, u.provider, u.model, count(*), sum(u.input_tokens),
       sum(u.output_tokens), sum(u.cache_read_tokens), sum(u.cache_write_tokens), coalesce(sum(u.cost_usd_ticks), 0)
  FROM task_usage u JOIN agent_task_queue t ON t.id = u.task_id
 WHERE u.created_at >= %(bucket)s AND u.created_at < %(bucket)s + interval '1 hour' AND u.updated_at >= %(bucket)s
 GROUP BY t.workspace_id, t.agent_id, t.runtime_id, u.provider, u.model
"""
