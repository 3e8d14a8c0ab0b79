"""Statements of what a run reports beside its state: messages, progress, usage. None of them touches the queue row.

Each is fenced in itself: it finds the task by primary key, within reach of the caller (`workspaces`) and owned by the
call's delivery (`claim_token`; null skips that test), and writes only then. It returns the task's address for the
event and what was written, or no row at all when the call may not write. The only lock on the queue row is the share of
the key that the foreign key takes.
"""

from __future__ import annotations

_TASK = """task AS MATERIALIZED (
  SELECT t.id, t.workspace_id, t.agent_id, t.issue_id, t.status, t.event_seq, t.chat_session_id FROM agent_task_queue t
   WHERE t.id = %(task_id)s AND t.workspace_id = ANY(%(workspaces)s)
     AND (%(claim_token)s::uuid IS NULL OR t.claim_token = %(claim_token)s::uuid)
)"""
_ADDRESS = "t.workspace_id, t.agent_id, t.issue_id, t.status, t.event_seq, t.chat_session_id"

APPEND_MESSAGES = f"""
WITH {_TASK}, made AS (
  INSERT INTO task_message (task_id, seq, type, tool, content, input, output)
  SELECT t.id, m.seq, m.type, m.tool, m.content, m.input, m.output
    FROM task t, jsonb_to_recordset(%(messages)s::jsonb)
         AS m(seq int, type text, tool text, content text, input jsonb, output text)
   ORDER BY m.seq
  ON CONFLICT (task_id, seq) DO NOTHING
  RETURNING seq
)
SELECT {_ADDRESS}, (SELECT array_agg(seq ORDER BY seq) FROM made) FROM task t
"""
"""A batch of at most some hundred rows into (task, seq); a seq that is there already is left as it is."""

WRITE_PROGRESS = f"""
WITH {_TASK}, made AS (
  INSERT INTO task_progress (task_id, summary, step, total, updated_at)
  SELECT t.id, %(summary)s, %(step)s, %(total)s, now() FROM task t
   WHERE t.status IN ('dispatched', 'waiting_local_directory', 'running')
  ON CONFLICT (task_id) DO UPDATE
     SET summary = excluded.summary, step = excluded.step, total = excluded.total, updated_at = excluded.updated_at
  RETURNING 1
)
SELECT {_ADDRESS}, EXISTS (SELECT 1 FROM made) FROM task t
"""
"""One row a task; after the end it stays as it was."""

WRITE_USAGE = f"""
WITH {_TASK}, made AS (
  INSERT INTO task_usage (id, task_id, provider, model, input_tokens, output_tokens, cache_read_tokens,
                          cache_write_tokens, cost_usd_ticks, updated_at)
  SELECT u.id, t.id, u.provider, u.model, u.input_tokens, u.output_tokens, u.cache_read_tokens, u.cache_write_tokens,
         u.cost_usd_ticks, now()
    FROM task t, jsonb_to_recordset(%(usage)s::jsonb)
         AS u(id uuid, provider text, model text, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint,
              cache_write_tokens bigint, cost_usd_ticks bigint)
   ORDER BY u.provider, u.model
  ON CONFLICT (task_id, provider, model) DO UPDATE
     SET input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
         cache_read_tokens = excluded.cache_read_tokens, cache_write_tokens = excluded.cache_write_tokens,
         cost_usd_ticks = excluded.cost_usd_ticks, updated_at = excluded.updated_at
  RETURNING 1
)
SELECT {_ADDRESS}, (SELECT count(*) FROM made) FROM task t
"""
"""One row a task, provider and model; the newest report replaces the one before, since daemons send running totals."""
