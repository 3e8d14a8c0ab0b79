"""The shape of a transition's SQL: lock, test, stamp, write, log, as one statement.

    target   the rows named, locked, as they are after the lock was granted
    next     those whose status and guard allow the verb, with their new values
    stamped  the same with the event's changes and its place in the hash chain
    moved    the UPDATE, found by primary key alone
    logged   the event rows

The row and its event are written by one statement, so neither exists without the other. The lock is taken first and
the guard is tested on the locked row, so a stale snapshot cannot let two verbs through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from queue_app.domain.history import changes_expression
from queue_app.domain.states import EDGES

NOW = "coalesce(%(now)s::timestamptz, now())"
"""The database's clock, or the instant that a test or a preview gives."""


@dataclass(frozen=True)
class Transition:
    """What one verb does: `sets` maps columns to SQL over the locked row `t`, `guard` is SQL that must hold for it.

    `where` finds the candidates as `q`; `limit` and `skip_locked` make it a sweep's batch. `reason` is SQL for the
    event's reason.
    """

    verb: str
    sets: Mapping[str, str] = field(default_factory=dict)
    guard: str = "true"
    where: str = "q.id = %(task_id)s"
    reason: str = "%(reason)s::text"
    joins: str = ""
    batch: bool = False

    @cached_property
    def text(self) -> str:
        """The statement. Parameters: `now`, `actor`, `reason`, those of the parts, and `limit` if batch."""
        edge = EDGES[self.verb]
        values = dict(self.sets)
        if edge.target is not None:
            values["status"] = f"'{edge.target}'"
        sources = ", ".join(f"'{status}'" for status in sorted(edge.sources))
        new = {column: f"n_{column}" for column in values}
        columns = "".join(f",\n         ({sql}) AS n_{column}" for column, sql in values.items())
        status = new.get("status", "n.status")
        return f"""
WITH target AS MATERIALIZED (
  SELECT q.* FROM agent_task_queue q {self.joins}
   WHERE {self.where}
   ORDER BY q.id {"LIMIT %(limit)s" if self.batch else ""}
     FOR NO KEY UPDATE OF q {"SKIP LOCKED" if self.batch else ""}
), next AS MATERIALIZED (
  SELECT t.*, ({self.reason}) AS e_reason, {NOW} AS e_at{columns}
    FROM target t
   WHERE t.status IN ({sources}) AND ({self.guard})
), shaped AS MATERIALIZED (
  SELECT n.*, {changes_expression(new)} AS e_changes,
         {status}::text AS e_status, {new.get("attempt", "n.attempt")} AS e_attempt,
         {"coalesce(n.n_claim_token, n.claim_token)" if "claim_token" in values else "n.claim_token"} AS e_token
    FROM next n
), stamped AS MATERIALIZED (
  SELECT s.*, task_event_hash(s.event_hash, s.id, s.event_seq + 1, '{self.verb}', s.status::text, s.e_status,
                              s.e_reason, s.e_attempt, s.e_token, %(actor)s, s.e_at, s.e_changes) AS e_hash
    FROM shaped s
), moved AS (
  UPDATE agent_task_queue q
     SET event_seq = s.event_seq + 1, event_hash = s.e_hash{"".join(f", {c} = s.n_{c}" for c in values)}
    FROM stamped s
   WHERE q.id = s.id
  RETURNING q.*, s.status AS from_status
), logged AS (
  INSERT INTO task_event (task_id, seq, verb, from_status, to_status, reason, attempt, claim_token, actor, at,
                          changes, hash)
  SELECT s.id, s.event_seq + 1, '{self.verb}', s.status, s.e_status, s.e_reason, s.e_attempt, s.e_token, %(actor)s,
         s.e_at, s.e_changes, s.e_hash
    FROM stamped s
)
SELECT * FROM moved ORDER BY id
"""
