"""The lease statements of `sys_cron_executions`. Each is one statement; who does not get a row has changed nothing.

All find their row by the unique key or the primary key and lock only it. Time is the database's, or `now` in tests.
"""

from __future__ import annotations

NOW = "coalesce(%(now)s::timestamptz, now())"
_STALE = f"{NOW} + make_interval(secs => %(stale)s)"
_MINE = "id = %(id)s AND lease_token = %(token)s AND status = 'RUNNING'"

CLAIM = f"""
INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, status, attempt, max_attempts,
                                 runner_id, lease_token, heartbeat_at, stale_after, started_at, result, created_at,
                                 updated_at)
VALUES (%(id)s, %(job)s, %(scope_kind)s, %(scope_id)s, %(plan)s, 'RUNNING', 1, %(max_attempts)s, %(runner)s,
        gen_random_uuid(), {NOW}, {_STALE}, {NOW}, '{{}}', {NOW}, {NOW})
    ON CONFLICT (job_name, scope_kind, scope_id, plan_time) DO NOTHING
RETURNING *
"""
"""First come, first served: one insert wins a plan."""

STEAL = f"""
UPDATE sys_cron_executions
   SET status = 'RUNNING', attempt = attempt + 1, runner_id = %(runner)s, lease_token = gen_random_uuid(),
       heartbeat_at = {NOW}, stale_after = {_STALE}, started_at = {NOW}, finished_at = NULL, duration_ms = NULL,
       next_retry_at = NULL, error_code = NULL, error_msg = NULL, rows_affected = NULL, updated_at = {NOW}
 WHERE job_name = %(job)s AND scope_kind = %(scope_kind)s AND scope_id = %(scope_id)s AND plan_time = %(plan)s
   AND attempt < max_attempts
   AND ((status = 'FAILED' AND (next_retry_at IS NULL OR next_retry_at <= {NOW})
         AND (%(reentry)s OR error_code IS DISTINCT FROM 'stale_timeout'))
     OR (status = 'RUNNING' AND stale_after <= {NOW} AND %(reentry)s))
RETURNING *
"""
"""The next attempt of a plan that failed and is due again, or whose runner let the lease run out.

A job that forbids re-entry is never taken over, neither while its row runs nor after the row was closed as abandoned.
"""

CLOSE_ABANDONED = f"""
WITH gone AS MATERIALIZED (
  SELECT id FROM sys_cron_executions
   WHERE status = 'RUNNING' AND stale_after <= {NOW} AND job_name = ANY(%(jobs)s)
   ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
UPDATE sys_cron_executions e
   SET status = 'FAILED', finished_at = {NOW}, error_code = 'stale_timeout',
       error_msg = 'its runner stopped renewing the lease', next_retry_at = NULL, updated_at = {NOW},
       duration_ms = least(2147483647, greatest(0, extract(epoch FROM {NOW} - e.started_at) * 1000))::int
  FROM gone WHERE e.id = gone.id AND e.status = 'RUNNING' AND e.stale_after <= {NOW}
RETURNING e.*
"""

HEARTBEAT = f"""
UPDATE sys_cron_executions SET heartbeat_at = {NOW}, stale_after = {_STALE}, updated_at = {NOW} WHERE {_MINE}
RETURNING *
"""
"""No row: the lease is lost and the handler must stop."""

FINISH = f"""
UPDATE sys_cron_executions
   SET status = %(status)s, finished_at = {NOW}, rows_affected = %(rows)s, result = %(result)s::jsonb,
       error_code = %(code)s, error_msg = %(message)s, updated_at = {NOW},
       next_retry_at = CASE WHEN %(status)s = 'FAILED' AND attempt < max_attempts
                            THEN {NOW} + make_interval(secs => %(wait)s) END,
       duration_ms = least(2147483647, greatest(0, extract(epoch FROM {NOW} - started_at) * 1000))::int
 WHERE {_MINE}
RETURNING *
"""
"""No row: somebody else owns the plan by now and this result counts for nothing."""
