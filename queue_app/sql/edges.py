"""The edges of the state machine as guarded SQL: what each verb sets, under which guard, over which rows.

`domain.states.EDGES` names the states; here stands the rest of each rule. `queue_app.transitions` runs these, and the
sweeps' previews and the explainer read the conditions, so what is shown is what is run. In every piece `q` is a
candidate, `t` the locked row, `m` its runtime.
"""

from __future__ import annotations

from queue_app.sql.statements import NOW, Transition

FENCE = "(%(claim_token)s::uuid IS NULL OR t.claim_token = %(claim_token)s::uuid)"

LEASE = f"{NOW} + make_interval(secs => %(lease)s)"

MAY_LIVE = f"CASE WHEN t.status IN ('dispatched', 'waiting_local_directory', 'running') THEN {NOW} END"

NO_LEASE = {"prepare_lease_expires_at": "NULL::timestamptz"}

ENQUEUE = """
WITH asked AS MATERIALIZED (
  SELECT r.* FROM jsonb_populate_recordset(NULL::agent_task_queue, %(rows)s::jsonb) r
), owned AS MATERIALIZED (
  SELECT r.* FROM asked r
    JOIN agent a ON a.id = r.agent_id AND a.workspace_id = r.workspace_id AND a.archived_at IS NULL
    JOIN agent_runtime m ON m.id = r.runtime_id AND m.workspace_id = r.workspace_id
   ORDER BY r.id
     FOR KEY SHARE OF a, m
), shaped AS MATERIALIZED (
  SELECT n.*, {changes} AS e_changes FROM owned n
), stamped AS MATERIALIZED (
  SELECT s.*, CASE s.status WHEN 'deferred' THEN 'defer' ELSE 'enqueue' END AS e_verb,
         task_event_hash(NULL, s.id, 1, CASE s.status WHEN 'deferred' THEN 'defer' ELSE 'enqueue' END, NULL, s.status,
                         %(reason)s::text, s.attempt, NULL, %(actor)s, s.created_at, s.e_changes) AS e_hash
    FROM shaped s
), made AS (
  INSERT INTO agent_task_queue ({columns}, event_seq, event_hash)
  SELECT {columns}, 1, e_hash FROM stamped ORDER BY id
  ON CONFLICT DO NOTHING
  RETURNING *
), logged AS (
  INSERT INTO task_event (task_id, seq, verb, to_status, reason, attempt, actor, at, changes, hash)
  SELECT s.id, 1, s.e_verb, s.status, %(reason)s::text, s.attempt, %(actor)s, s.created_at, s.e_changes, s.e_hash
    FROM stamped s JOIN made USING (id)
)
SELECT made.*, NULL::text AS from_status FROM made ORDER BY id
"""

MERGE = Transition(
    "merge",
    {
        "trigger_comment_id": "%(comment_id)s::uuid",
        "coalesced_comment_ids": "array_remove(CASE WHEN t.trigger_comment_id IS NULL THEN t.coalesced_comment_ids "
        "ELSE array_append(array_remove(t.coalesced_comment_ids, t.trigger_comment_id), t.trigger_comment_id) END, "
        "%(comment_id)s::uuid)",
        "trigger_summary": "coalesce(%(summary)s::text, t.trigger_summary)",
        "originator_user_id": "%(originator)s::uuid",
        "accountable_user_id": "%(accountable)s::uuid",
        "originator_source": "%(source)s::text",
        "delegated_from_task_id": "%(delegated_from)s::uuid",
        "trigger_evidence_kind": "%(evidence_kind)s::text",
        "trigger_evidence_ref_id": "%(evidence_ref)s::uuid",
    },
    guard="t.started_at IS NULL",
)

REPRIORITISE = Transition(
    "reprioritise", {"priority": "%(priority)s::smallint", "base_priority": "%(priority)s::smallint"}
)

AGED = f"least(4, t.base_priority + floor(extract(epoch FROM {NOW} - t.created_at) / %(step)s))"

AGE = Transition(
    "age",
    {"priority": f"{AGED}::smallint"},
    guard=f"t.priority < {AGED}",
    where="q.id = ANY(%(task_ids)s::uuid[]) AND q.status = 'queued'",
    batch=True,
)

HOLD = """EXISTS (SELECT 1 FROM agent_task_queue h
  WHERE h.runtime_id = {row}.runtime_id AND h.agent_id = {row}.agent_id AND h.stop_pending_since IS NOT NULL
    AND (h.serial_key = {row}.serial_key OR (h.serial_key IS NULL AND {row}.parent_task_id = h.id)))"""
"""SQL: an older process of the same agent and key may still live on the row's runtime (design D3)."""

FRESH = f"m.status = 'online' AND m.last_seen_at >= {NOW} - make_interval(secs => %(freshness)s)"

PROMOTE_WHERE = f"""q.status = 'deferred' AND q.fire_at <= {NOW}
     AND (%(runtime_ids)s::uuid[] IS NULL OR q.runtime_id = ANY(%(runtime_ids)s::uuid[])) AND {FRESH}
     AND NOT {HOLD.format(row="q")}
     AND (q.issue_id IS NULL OR (
       NOT EXISTS (SELECT 1 FROM agent_task_queue p WHERE p.issue_id = q.issue_id AND p.agent_id = q.agent_id
                    AND p.status IN ('queued', 'dispatched'))
       AND NOT EXISTS (SELECT 1 FROM agent_task_queue d WHERE d.issue_id = q.issue_id AND d.agent_id = q.agent_id
                    AND d.status = 'deferred' AND d.fire_at <= {NOW}
                    AND (-d.priority, d.created_at, d.id) < (-q.priority, q.created_at, q.id))))"""

PROMOTE = Transition("promote", where=PROMOTE_WHERE, joins="JOIN agent_runtime m ON m.id = q.runtime_id", batch=True)

REQUEUE = Transition(
    "requeue",
    {
        "claim_token": "NULL::uuid",
        "dispatched_at": "NULL::timestamptz",
        "lease_extensions": "0",
        "delivered_comment_ids": "'{}'::uuid[]",
        **NO_LEASE,
    },
    guard="t.claim_token = %(claim_token)s::uuid AND t.started_at IS NULL",
)

RECORD_DELIVERY = Transition(
    "record_delivery",
    {"delivered_comment_ids": "%(comment_ids)s::uuid[]"},
    guard="t.claim_token = %(claim_token)s::uuid AND t.started_at IS NULL",
)

RENEW = Transition(
    "renew_lease",
    {"prepare_lease_expires_at": LEASE, "lease_extensions": "t.lease_extensions + 1"},
    guard=f"{FENCE} AND t.runtime_id = %(runtime_id)s AND t.started_at IS NULL",
)

PARK = Transition(
    "park",
    {
        "wait_reason": "%(wait_reason)s::text",
        "prepare_lease_expires_at": LEASE,
        "lease_extensions": "t.lease_extensions + 1",
    },
    guard=FENCE,
)

START = Transition(
    "start",
    {"started_at": NOW, "wait_reason": "NULL::text", **NO_LEASE},
    guard=f"{FENCE} AND t.started_at IS NULL",
)

PIN = Transition(
    "pin_session",
    {
        "session_id": "coalesce(%(session_id)s::text, t.session_id)",
        "work_dir": "coalesce(%(work_dir)s::text, t.work_dir)",
    },
    guard=f"{FENCE} AND (t.status <> 'cancelled' OR t.session_id IS NULL)",
)

REPORTED = {
    "completed_at": NOW,
    "session_id": "CASE WHEN NOT %(session_rollout_missing)s THEN coalesce(%(session_id)s::text, t.session_id) END",
    "session_rollout_missing": "%(session_rollout_missing)s::boolean",
    "retired_session_id": "coalesce(%(retired_session_id)s::text, t.retired_session_id)",
    "work_dir": "coalesce(%(work_dir)s::text, t.work_dir)",
    "durable_work_dir": "coalesce(%(durable_work_dir)s::text, t.durable_work_dir)",
    "branch_name": "coalesce(%(branch_name)s::text, t.branch_name)",
    **NO_LEASE,
}

COMPLETE = Transition("complete", {**REPORTED, "result": "%(result)s::jsonb"}, guard=FENCE)

FAIL = Transition(
    "fail",
    {
        **REPORTED,
        "error": "%(error)s::text",
        "failure_reason": "%(reason)s::text",
        "not_retried_because": "%(not_retried_because)s::text",
    },
    guard=FENCE,
)

THESE = "(%(task_ids)s::uuid[] IS NULL OR q.id = ANY(%(task_ids)s::uuid[]))"
"""SQL: a sweep that looked before it acts names what it saw; the rule is tested again all the same."""


def _swept(verb: str, where: str, *, hold: str | None = None, joins: str = "") -> Transition:
    """A server-side failure of a batch: `reason` and `error` are given, `hold` marks a process that may still live."""
    sets = {
        "completed_at": NOW,
        "error": "%(error)s::text",
        "failure_reason": "%(reason)s::text",
        "wait_reason": "NULL::text",
        **NO_LEASE,
    }
    if hold is not None:
        sets["stop_pending_since"] = hold
    return Transition(verb, sets, where=f"({where}) AND {THESE}", joins=joins, batch=True)


RECOVER = _swept(
    "recover_orphan",
    "q.status IN ('dispatched', 'waiting_local_directory', 'running') "
    "AND (%(runtime_id)s::uuid IS NULL OR q.runtime_id = %(runtime_id)s::uuid) "
    "AND (%(claim_tokens)s::uuid[] IS NULL OR q.claim_token = ANY(%(claim_tokens)s::uuid[]))",
)

LEASE_OVER = f"q.prepare_lease_expires_at <= {NOW}"

ABSENT = f"(m.id IS NULL OR coalesce(m.last_seen_at, m.created_at) < {NOW} - make_interval(secs => %(grace)s))"

TIME_OUT_WHERE = f"""(
    (q.status IN ('dispatched', 'waiting_local_directory') AND {LEASE_OVER}
      AND (q.lease_extensions > 0 OR q.dispatched_at <= {NOW} - make_interval(secs => %(dispatch_timeout)s)))
    OR (q.status = 'dispatched' AND q.deliveries >= %(max_deliveries)s AND {LEASE_OVER}
      AND q.dispatched_at <= {NOW} - make_interval(secs => %(recovery_window)s))
    OR (q.status = 'running' AND q.started_at <= {NOW} - make_interval(secs => %(backstop)s) AND {ABSENT}))"""
"""D3b, the dispatch backstop, the last delivery lost, and D4: the running backstop needs a lost machine too."""

TIME_OUT = _swept(
    "time_out",
    f"q.status IN ('dispatched', 'waiting_local_directory', 'running') AND {TIME_OUT_WHERE}",
    hold=f"CASE WHEN t.lease_extensions > 0 OR t.status <> 'dispatched' THEN {NOW} END",
    joins="LEFT JOIN agent_runtime m ON m.id = q.runtime_id",
)

LOST_WHERE = f"""q.status IN ('dispatched', 'waiting_local_directory', 'running') AND m.status = 'offline'
  AND coalesce(m.last_seen_at, m.created_at) < {NOW} - make_interval(secs => %(grace)s)"""

LOSE = _swept("lose_runtime", LOST_WHERE, hold=NOW, joins="JOIN agent_runtime m ON m.id = q.runtime_id")

EXPIRED_WHERE = f"""q.status = 'queued' AND q.retry_of_task_id IS NULL
  AND q.created_at <= {NOW} - make_interval(secs => %(queue_ttl)s)"""

EXPIRE_QUEUED = _swept("expire_queued", EXPIRED_WHERE)

EXPIRED_DEFERRED_WHERE = f"""q.status = 'deferred' AND q.retry_of_task_id IS NOT NULL
  AND q.fire_at <= {NOW} - make_interval(secs => %(grace)s) AND NOT ({FRESH})"""

EXPIRE_DEFERRED = _swept("expire_deferred", EXPIRED_DEFERRED_WHERE, joins="JOIN agent_runtime m ON m.id = q.runtime_id")

CANCEL_SETS = {
    "completed_at": NOW,
    "wait_reason": "NULL::text",
    "failure_reason": "%(failure_reason)s::text",
    "error": "%(error)s::text",
    "stop_pending_since": MAY_LIVE,
    "chat_finalize_deferred_at": f"CASE WHEN %(defer_chat)s AND t.chat_session_id IS NOT NULL THEN {NOW} END",
    **NO_LEASE,
}

CANCEL = Transition(
    "cancel",
    CANCEL_SETS,
    where="q.id = ANY(%(task_ids)s::uuid[])",
    guard="%(only)s::text[] IS NULL OR t.status = ANY(%(only)s::text[])",
)

CONFIRM_STOP = Transition(
    "confirm_stop",
    {
        "stopped_at": f"coalesce(t.stopped_at, {NOW})",
        "stop_pending_since": "NULL::timestamptz",
        "branch_name": "CASE WHEN t.status = 'cancelled' THEN coalesce(t.branch_name, %(branch_name)s::text) "
        "ELSE t.branch_name END",
        "durable_work_dir": "CASE WHEN t.status = 'cancelled' THEN coalesce(t.durable_work_dir, "
        "%(durable_work_dir)s::text) ELSE t.durable_work_dir END",
        "error": "CASE WHEN t.status = 'cancelled' THEN coalesce(t.error, %(error)s::text) ELSE t.error END",
        "failure_reason": "CASE WHEN t.status = 'cancelled' THEN coalesce(t.failure_reason, %(failure_reason)s::text) "
        "ELSE t.failure_reason END",
    },
    guard=f"{FENCE} AND (t.stopped_at IS NULL OR t.stop_pending_since IS NOT NULL)",
)

RELEASE_HOLD = Transition(
    "release_hold",
    {"stop_pending_since": "NULL::timestamptz"},
    guard="t.stop_pending_since IS NOT NULL",
    where="q.id = ANY(%(task_ids)s::uuid[])",
)

SETTLE_CHAT = Transition(
    "settle_chat",
    {"chat_finalize_deferred_at": "NULL::timestamptz"},
    guard="t.chat_finalize_deferred_at IS NOT NULL",
)

EXPLAIN_NO_RETRY = Transition("explain_no_retry", {"not_retried_because": "%(because)s::text"})

EXPLAIN_NO_RETRIES = Transition(
    "explain_no_retry",
    {"not_retried_because": "%(because)s::jsonb ->> t.id::text"},
    where="q.id = ANY(%(task_ids)s::uuid[])",
)
