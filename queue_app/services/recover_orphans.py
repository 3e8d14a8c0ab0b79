"""A daemon came back without what it held: fail it as orphaned and let the rules try it again."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from django.db import connection, transaction
from django.db.models import QuerySet

from queue_app import events, transitions
from queue_app.auth import Caller
from queue_app.conf import conf
from queue_app.domain.states import ACTIVE
from queue_app.models import AgentRuntime, AgentTask
from queue_app.services import access, promote, settle
from queue_app.services.issue_lock import share_issues
from queue_app.sql.statements import NOW

RESTARTED = "daemon restarted while task was in flight"
OMITTED = "the daemon no longer holds this task"


def recover_orphans(caller: Caller, runtime_id: UUID | None, *, now: datetime | None = None) -> dict[str, int]:
    """Fail everything that is active on a runtime, retry by rule, and lift the holds that waited for old processes.

    For a daemon that starts anew: it has killed its survivors and replayed its reports before. Returns the counts
    `orphaned` and `retried`; a repeat finds nothing. Raises RuntimeNotFoundError and NotFoundError.
    """
    runtime = access.runtime_of(caller, runtime_id)
    actor = f"daemon:{runtime.id}"
    counts = {"orphaned": 0, "retried": 0}
    while True:
        with transaction.atomic():
            share_issues(_active(runtime.id).values_list("issue_id", flat=True))
            rows = transitions.recover_orphan(runtime_id=runtime.id, error=RESTARTED, actor=actor, now=now)
            counts["orphaned"] += len(rows)
            counts["retried"] += len(settle.failures(rows, "recover_orphan", now=now))
            promote.followers(rows, now)
        if not rows:
            break
    _lift_holds(runtime.id, None, "its daemon restarted", actor, now)
    return counts


def _active(runtime_id: UUID) -> QuerySet[AgentTask]:
    return AgentTask.objects.filter(runtime_id=runtime_id, status__in=sorted(ACTIVE))


def recover_omitted(
    runtime: AgentRuntime,
    active_tasks: Collection[UUID],
    incarnation: UUID,
    seq: int,
    *,
    now: datetime | None = None,
) -> list[AgentTask]:
    """What a heartbeat's list of held tasks proves (design D10); returns the rows failed as orphans.

    A row that this delivery has started or extended and that is left out is noted; a second beat of the same
    incarnation with a higher number, `OMISSION_GAP` seconds later, recovers it. Beats that may have been composed
    before the daemon knew of the start or the extension count for nothing, and so do deliveries that may be lost.
    Holds of ended rows that the list lacks are lifted. The caller passes only beats that carry the list, in order.
    """
    held = list(active_tasks)
    actor = f"daemon:{runtime.id}"
    params = {
        "runtime_id": runtime.id,
        "held": held,
        "incarnation": incarnation,
        "seq": seq,
        "gap": conf.OMISSION_GAP,
        "lease": conf.PREPARE_LEASE,
        "now": now,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_FORGET, params)
        cursor.execute(_PROVEN, params)
        proven = cursor.fetchall()
        share_issues(row[2] for row in proven)
        rows = (
            transitions.recover_orphan(
                runtime_id=runtime.id,
                task_ids=[row[0] for row in proven],
                claim_tokens=[row[1] for row in proven],
                error=OMITTED,
                actor=actor,
                now=now,
            )
            if proven
            else []
        )
        cursor.execute(_NOTE, params)
        settle.failures(rows, "recover_orphan", now=now)
        promote.followers(rows, now)
    _lift_holds(runtime.id, held, "its daemon no longer holds it", actor, now)
    return rows


_ACTIVE = """t.runtime_id = %(runtime_id)s AND t.status IN ('dispatched', 'waiting_local_directory', 'running')
   AND NOT t.id = ANY(%(held)s::uuid[])"""
_ANSWERED = f"""(
     (t.status = 'running' AND t.started_at <= {NOW} - make_interval(secs => %(gap)s))
     OR (t.status <> 'running' AND t.lease_extensions > 0
         AND t.prepare_lease_expires_at <= {NOW} + make_interval(secs => %(lease)s - %(gap)s)))"""
"""The start, or the newest extension (a lease ago), was answered long enough before this beat was composed."""

_FORGET = """
DELETE FROM task_omission o USING agent_task_queue t
 WHERE t.id = o.task_id AND t.runtime_id = %(runtime_id)s
   AND (t.id = ANY(%(held)s::uuid[]) OR t.claim_token IS DISTINCT FROM o.claim_token
        OR o.incarnation <> %(incarnation)s OR t.status IN ('completed', 'failed', 'cancelled'))
"""
_PROVEN = f"""
SELECT t.id, t.claim_token, t.issue_id FROM agent_task_queue t
  JOIN task_omission o ON o.task_id = t.id AND o.claim_token = t.claim_token
 WHERE {_ACTIVE} AND {_ANSWERED} AND o.incarnation = %(incarnation)s AND o.seq < %(seq)s
   AND o.at <= {NOW} - make_interval(secs => %(gap)s)
 ORDER BY t.id
"""
_NOTE = f"""
INSERT INTO task_omission (task_id, claim_token, incarnation, seq, at)
SELECT t.id, t.claim_token, %(incarnation)s, %(seq)s, {NOW} FROM agent_task_queue t
 WHERE {_ACTIVE} AND {_ANSWERED}
 ORDER BY t.id
    ON CONFLICT (task_id) DO NOTHING
"""
_HOLDS = f"""
SELECT t.id FROM agent_task_queue t
 WHERE t.runtime_id = %(runtime_id)s AND t.stop_pending_since IS NOT NULL
   AND (%(held)s::uuid[] IS NULL OR (NOT t.id = ANY(%(held)s::uuid[])
        AND t.stop_pending_since <= {NOW} - make_interval(secs => %(gap)s)))
 ORDER BY t.id
"""


def _lift_holds(
    runtime_id: UUID, held: list[UUID] | None, reason: str, actor: str, now: datetime | None
) -> list[AgentTask]:
    # With a list, a hold younger than the gap stays: the beat may have been composed before the daemon had the task.
    params = {"runtime_id": runtime_id, "held": held, "gap": conf.OMISSION_GAP, "now": now}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_HOLDS, params)
        ids = [row[0] for row in cursor.fetchall()]
        rows = transitions.release_hold(ids, reason=reason, actor=actor, now=now) if ids else []
        events.announce("release_hold", rows)
    return rows
