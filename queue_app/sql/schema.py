"""SQL that the migrations install: functions, triggers, database cascades and storage settings.

The functions that must agree with the Python rules are built from them (`domain.states`, `domain.history`), so a
change there shows up as a changed migration in the schema test rather than as drift.
"""

from __future__ import annotations

from queue_app.domain.history import CARRIED, carried_expression
from queue_app.domain.states import LAWFUL_MOVES

INSTANT = """
CREATE OR REPLACE FUNCTION task_instant(moment timestamptz) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS
$$ SELECT to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$
"""

DIGEST = """
CREATE OR REPLACE FUNCTION task_digest(content text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS
$$ SELECT encode(sha256(convert_to(content, 'UTF8')), 'hex') $$
"""

EVENT_HASH = """
CREATE OR REPLACE FUNCTION task_event_hash(
  previous bytea, task uuid, seq int, verb text, from_status text, to_status text, reason text, attempt int,
  token uuid, actor text, at timestamptz, changes jsonb
) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT sha256(coalesce(previous, ''::bytea) || convert_to(jsonb_build_array(
    task, seq, verb, from_status, to_status, reason, attempt, token, actor, task_instant(at), changes)::text, 'UTF8'))
$$
"""


def carried_function() -> str:
    """`task_carried(row)`: the part of a row that its events carry, in the form that they carry it."""
    pairs = [f"'{column}', {carried_expression(column, f'task.{column}')}" for column in CARRIED]
    pieces = [pairs[start : start + 40] for start in range(0, len(pairs), 40)]
    body = " || ".join(f"jsonb_build_object({', '.join(piece)})" for piece in pieces)
    return (
        "CREATE OR REPLACE FUNCTION task_carried(task agent_task_queue) RETURNS jsonb "
        f"LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT {body} $$"
    )


def edge_trigger() -> str:
    """The guard that refuses an illegal change of status whoever writes it, and any change of who runs an ended row."""
    moves = ", ".join(f"'{source}>{target}'" for source, target in sorted(LAWFUL_MOVES))
    return f"""
CREATE OR REPLACE FUNCTION task_guard_edge() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status IS DISTINCT FROM OLD.status AND (OLD.status || '>' || NEW.status) NOT IN ({moves}) THEN
    RAISE EXCEPTION 'a task may not go from % to %', OLD.status, NEW.status USING ERRCODE = 'check_violation';
  END IF;
  IF NEW.status IN ('completed', 'failed', 'cancelled') THEN
    NEW.runtime_mcp_overlay := NULL;
    NEW.runtime_connected_apps := NULL;
  END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER task_edge BEFORE UPDATE OF status ON agent_task_queue
  FOR EACH ROW EXECUTE FUNCTION task_guard_edge();
"""


EVENT_GUARD = """
CREATE OR REPLACE FUNCTION task_event_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' AND NOT EXISTS (SELECT 1 FROM agent_task_queue WHERE id = OLD.task_id) THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION 'task events are append-only: they go only with their task' USING ERRCODE = 'check_violation';
END $$;
CREATE OR REPLACE TRIGGER task_event_append_only BEFORE UPDATE OR DELETE ON task_event
  FOR EACH ROW EXECUTE FUNCTION task_event_guard();
"""

CASCADES = "\n".join(
    f"ALTER TABLE {table} ADD CONSTRAINT {table}_task_fk FOREIGN KEY (task_id) REFERENCES agent_task_queue (id) "
    "ON DELETE CASCADE;"
    for table in (
        "task_event",
        "late_write",
        "task_message",
        "task_progress",
        "task_usage",
        "task_omission",
        "task_token",
    )
)

FOLD = """
CREATE OR REPLACE AGGREGATE jsonb_fold(jsonb) (sfunc = jsonb_concat, stype = jsonb, initcond = '{}');
"""

STORAGE = """
ALTER TABLE agent_task_queue SET (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE agent SET (fillfactor = 50);
ALTER TABLE agent_runtime SET (fillfactor = 50);
CREATE STATISTICS IF NOT EXISTS task_pair (dependencies, ndistinct) ON runtime_id, agent_id FROM agent_task_queue;
"""


def install() -> str:
    """Everything, in an order that works on fresh tables."""
    return ";\n".join(
        [INSTANT, DIGEST, EVENT_HASH, carried_function(), edge_trigger(), EVENT_GUARD, CASCADES, FOLD, STORAGE]
    )
