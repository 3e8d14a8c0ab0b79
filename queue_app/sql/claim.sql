-- The claim: one call, one transaction, any number of runtimes, up to 32 tasks.
--
-- Rows expected   a handful of runtimes and agents, at most p_max tasks
-- Indexes         task_claim (pairs, windows), task_active (caps, keys), task_stop_pending (holds),
--                 task_active_runtime (lost deliveries), task_deferred (what falls due), primary keys for the writes
-- Locks           agent rows FOR NO KEY UPDATE in id order, waiting (lock_timeout bounds it); then queue rows with SKIP LOCKED
--
-- The agents are locked by a statement of its own, before anything is counted: a count in the statement that takes the
-- lock would use a snapshot older than the lock, and two claims could both see the last free place. Whatever makes a
-- task active must hold its agent's lock.

DROP FUNCTION IF EXISTS claim_tasks;
DROP FUNCTION IF EXISTS claim_deliver;

-- Write the deliveries of rows that the caller has locked: state, event and task token in one statement, so that none
-- exists without the others. A queued row is claimed, a dispatched one is delivered again.
CREATE FUNCTION claim_deliver(
  p_ids uuid[], p_hashes text[], p_lease float8, p_token_ttl float8, p_now timestamptz
) RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
  v_answer jsonb;
BEGIN
  WITH target AS MATERIALIZED (
    SELECT q.*, u.place, m.owner_id AS e_owner, 'daemon:' || q.runtime_id AS e_actor,
           CASE q.status WHEN 'queued' THEN 'claim' ELSE 'redeliver' END AS e_verb,
           CASE q.status WHEN 'dispatched' THEN 'reclaimed_dispatched' END AS e_reason
      FROM unnest(p_ids) WITH ORDINALITY u(id, place)
      JOIN agent_task_queue q ON q.id = u.id
      JOIN agent_runtime m ON m.id = q.runtime_id
     WHERE q.status IN ('queued', 'dispatched') AND q.started_at IS NULL
  ), next AS MATERIALIZED (
    SELECT t.*, 'dispatched'::text AS n_status, p_now AS n_dispatched_at,
           p_now + make_interval(secs => p_lease) AS n_prepare_lease_expires_at,
           gen_random_uuid() AS n_claim_token, (t.deliveries + 1)::smallint AS n_deliveries, 0 AS n_lease_extensions
      FROM target t
  ), shaped AS MATERIALIZED (
    SELECT n.*, @changes@ AS e_changes FROM next n
  ), stamped AS MATERIALIZED (
    SELECT s.*, task_event_hash(s.event_hash, s.id, s.event_seq + 1, s.e_verb, s.status::text, s.n_status, s.e_reason,
                                s.attempt::int, s.n_claim_token, s.e_actor, p_now, s.e_changes) AS e_hash
      FROM shaped s
  ), moved AS (
    UPDATE agent_task_queue q
       SET status = s.n_status, dispatched_at = s.n_dispatched_at,
           prepare_lease_expires_at = s.n_prepare_lease_expires_at, claim_token = s.n_claim_token,
           deliveries = s.n_deliveries, lease_extensions = s.n_lease_extensions,
           event_seq = s.event_seq + 1, event_hash = s.e_hash
      FROM stamped s
     WHERE q.id = s.id
    RETURNING q.*, s.status AS from_status, s.e_verb AS verb, s.place
  ), logged AS (
    INSERT INTO task_event (task_id, seq, verb, from_status, to_status, reason, attempt, claim_token, actor, at,
                            changes, hash)
    SELECT s.id, s.event_seq + 1, s.e_verb, s.status, s.n_status, s.e_reason, s.attempt, s.n_claim_token, s.e_actor,
           p_now, s.e_changes, s.e_hash
      FROM stamped s
  ), tokens AS (
    INSERT INTO task_token (token_hash, task_id, claim_token, agent_id, workspace_id, user_id, expires_at)
    SELECT p_hashes[s.place], s.id, s.n_claim_token, s.agent_id, s.workspace_id, s.e_owner,
           p_now + make_interval(secs => p_token_ttl)
      FROM stamped s
  )
  SELECT coalesce(jsonb_agg(
           (to_jsonb(m) - '{event_hash,result,error}'::text[])
           || jsonb_build_object('token_hash', p_hashes[m.place], 'earlier', earlier.runs)
           ORDER BY m.place), '[]'::jsonb)
    INTO v_answer
    FROM moved m
    LEFT JOIN LATERAL (
      -- what a later answer may resume; the choice is made by domain.sessions
      SELECT jsonb_agg(to_jsonb(r)) AS runs FROM (
        SELECT e.id, e.status, e.runtime_id, e.session_id, e.retired_session_id, e.session_rollout_missing, e.work_dir,
               e.failure_reason, left(e.error, 2000) AS error, e.completed_at
          FROM agent_task_queue e
         WHERE e.issue_id = m.issue_id AND e.agent_id = m.agent_id AND e.id <> m.id
           AND e.status IN ('completed', 'failed', 'cancelled')
         ORDER BY e.created_at DESC LIMIT 20) r
    ) earlier ON true;
  RETURN v_answer;
END $function$;

CREATE FUNCTION claim_tasks(
  p_runtimes uuid[],          -- who asks: the runtimes to look at
  p_daemon text,              -- the daemon they must belong to; null: any
  p_workspaces uuid[],        -- the workspaces that the caller may see
  p_max int,                  -- at most so many tasks
  p_hashes text[],            -- hashes of task tokens, one for each possible task
  p_freshness float8, p_recovery float8, p_lease float8, p_token_ttl float8, p_max_deliveries int,
  p_one_by_one boolean,       -- deliver each row in a subtransaction of its own: one that is refused leaves the others
  p_now timestamptz           -- replaces the clock in tests; null: now()
) RETURNS jsonb LANGUAGE plpgsql VOLATILE
  SET jit = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $function$
DECLARE
  v_now timestamptz := coalesce(p_now, now());
  v_verdicts jsonb;
  v_ok uuid[];
  v_pair_runtimes uuid[];
  v_pair_agents uuid[];
  v_again uuid[] := '{}';
  v_picked uuid[] := '{}';
  v_locked_away uuid[];
  v_skip uuid[] := '{}';
  v_short boolean;
  v_room int;
  v_window int := 1;
  v_probe int := 16;
  v_round int := 0;
  v_id uuid;
  v_tasks jsonb := '[]';
  v_place int := 0;
BEGIN
  -- 1. Which of the runtimes may get work at all; the first predicate that fails names the outcome.
  SELECT jsonb_object_agg(r.id, r.verdict), array_agg(r.id) FILTER (WHERE r.verdict = 'ok')
    INTO v_verdicts, v_ok
    FROM (SELECT u.id, CASE WHEN m.id IS NULL THEN 'runtime_unknown' @verdicts@ ELSE 'ok' END AS verdict
            FROM (SELECT DISTINCT d.id FROM unnest(p_runtimes) d(id)) u
            LEFT JOIN agent_runtime m ON m.id = u.id) r;
  IF v_ok IS NULL OR p_max < 1 THEN
    RETURN jsonb_build_object('tasks', '[]'::jsonb, 'runtimes', coalesce(v_verdicts, '{}'), 'now', v_now);
  END IF;

  -- 2. The (runtime, agent) pairs that have queued rows: one index probe a pair, however long the queue.
  WITH RECURSIVE pair AS (
    SELECT r.id AS runtime_id,
           (SELECT q.agent_id FROM agent_task_queue q WHERE q.status = 'queued' AND q.runtime_id = r.id
             ORDER BY q.agent_id LIMIT 1) AS agent_id
      FROM unnest(v_ok) r(id)
    UNION ALL
    SELECT p.runtime_id,
           (SELECT q.agent_id FROM agent_task_queue q WHERE q.status = 'queued' AND q.runtime_id = p.runtime_id
               AND q.agent_id > p.agent_id ORDER BY q.agent_id LIMIT 1)
      FROM pair p WHERE p.agent_id IS NOT NULL
  )
  SELECT coalesce(array_agg(p.runtime_id), '{}'), coalesce(array_agg(p.agent_id), '{}')
    INTO v_pair_runtimes, v_pair_agents
    FROM pair p WHERE p.agent_id IS NOT NULL;

  -- 3. The guard of caps and keys: every claim of these agents goes one after the other from here to its commit.
  PERFORM 1 FROM agent a WHERE a.id = ANY(v_pair_agents) ORDER BY a.id FOR NO KEY UPDATE;

  -- 4. Deliveries that were lost come first. They count as active already, so no cap or key speaks against them, and a
  --    pause made since does not either: the work was given out before it.
  SELECT coalesce(array_agg(x.id), '{}') INTO v_again FROM (
    SELECT q.id FROM agent_task_queue q
     WHERE q.runtime_id = ANY(v_ok) AND @redeliverable@
     ORDER BY q.priority DESC, q.dispatched_at, q.id
     LIMIT p_max FOR NO KEY UPDATE SKIP LOCKED) x;
  v_room := p_max - cardinality(v_again);

  -- 5. Fresh work. A window bounds what is read of each pair; while claims stay short behind a full window, or rows are
  --    held by somebody else, look again further, so that blocked rows in front never hide a claimable one.
  WHILE v_room > 0 AND cardinality(v_pair_agents) > 0 LOOP
    v_round := v_round + 1;
    @pick@
    EXIT WHEN NOT v_short AND cardinality(v_locked_away) = 0;
    IF v_short THEN v_window := v_window * 16; END IF;
    IF cardinality(v_locked_away) > 0 AND v_round > 2 THEN
      -- Somebody holds many rows, such as a bulk cancel: find them all instead of meeting them one by one.
      v_probe := v_probe * 16;
      @probe@
    END IF;
    v_skip := v_skip || v_locked_away;
  END LOOP;

  -- 6. Deliver.
  IF NOT p_one_by_one THEN
    IF cardinality(v_again || v_picked) > 0 THEN
      v_tasks := claim_deliver(v_again || v_picked, p_hashes, p_lease, p_token_ttl, v_now);
    END IF;
  ELSE
    FOREACH v_id IN ARRAY v_again || v_picked LOOP
      v_place := v_place + 1;
      BEGIN
        v_tasks := v_tasks || claim_deliver(ARRAY[v_id], p_hashes[v_place:v_place], p_lease, p_token_ttl, v_now);
      EXCEPTION WHEN unique_violation THEN
        NULL;  -- this row's key is taken by a writer outside the claim's guard; the others stand
      END;
    END LOOP;
  END IF;

  -- 7. What the caller must know besides: the outcome of each runtime, when it next falls due, and the rows that the
  --    answers are made of.
  RETURN jsonb_build_object('tasks', v_tasks, 'now', v_now, 'runtimes', (@outcomes@), 'shared', (@shared@));
END $function$;
