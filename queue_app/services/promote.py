"""Deferred work whose time has come becomes claimable; retries that newer work made pointless are taken out first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from django.db import IntegrityError, connection, transaction

from queue_app import events, transitions
from queue_app.domain.states import ACTIVE, Status
from queue_app.models import AgentTask
from queue_app.services import settle
from queue_app.services.rules import BATCH, Due, Rule, look
from queue_app.sql import edges

RULE = Rule(
    name="promote",
    where=edges.PROMOTE_WHERE,
    text="'its time has come'",
    since="q.fire_at",
    threshold="0",
    joins="JOIN agent_runtime m ON m.id = q.runtime_id",
)

_SUPERSEDED = """
SELECT r.id, s.id FROM agent_task_queue r
  JOIN LATERAL (
    SELECT o.id FROM agent_task_queue o
     WHERE o.issue_id = r.issue_id AND o.agent_id = r.agent_id AND o.id <> r.id
       AND o.status IN ('queued', 'dispatched', 'waiting_local_directory', 'running')
       AND array_remove(array_append(r.coalesced_comment_ids, r.trigger_comment_id), NULL)
           <@ array_append(o.coalesced_comment_ids, o.trigger_comment_id)
     ORDER BY o.created_at LIMIT 1) s ON true
 WHERE r.status = 'deferred' AND r.issue_id IS NOT NULL AND r.retry_of_task_id IS NOT NULL
   AND r.escalation_for_task_id IS NULL
   AND (%(runtime_ids)s::uuid[] IS NULL OR r.runtime_id = ANY(%(runtime_ids)s::uuid[]))
 ORDER BY r.id LIMIT %(limit)s
"""


def superseded(runtime_ids: Sequence[UUID] | None = None, limit: int = BATCH) -> list[tuple[UUID, UUID]]:
    """Deferred retries beside open work of the same issue and agent that has all their comments: (retry, other task).

    One that carries a comment which the other task does not know is kept: its text would be lost with it.
    """
    with connection.cursor() as cursor:
        ids = None if runtime_ids is None else list(runtime_ids)
        cursor.execute(_SUPERSEDED, {"runtime_ids": ids, "limit": limit})
        return [(row[0], row[1]) for row in cursor.fetchall()]


def due(now: datetime | None = None) -> list[Due]:
    """What `run` would queue, superseded retries aside."""
    gone = {retry for retry, _ in superseded()}
    return [row for row in look(RULE, now=now, runtime_ids=None) if row.id not in gone]


def run(
    runtime_ids: Sequence[UUID] | None = None,
    *,
    now: datetime | None = None,
    actor: str = "sweep:promote",
    limit: int = BATCH,
) -> list[AgentTask]:
    """Promote what is due on these runtimes (None: everywhere), in transactions of its own or inside the caller's.

    An enqueue that is not committed yet may take a slot first: then runtimes are tried one by one, and the one in
    conflict waits for the next pass.
    """
    cancel_superseded(runtime_ids, actor=actor, now=now)
    made = _promote(runtime_ids, now, actor, limit)
    if made is not None:
        return made
    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT runtime_id FROM agent_task_queue WHERE status = 'deferred' ORDER BY 1")
        due = [row[0] for row in cursor.fetchall() if runtime_ids is None or row[0] in runtime_ids]
    return [task for runtime_id in due for task in _promote([runtime_id], now, actor, limit) or []]


def cancel_superseded(
    runtime_ids: Sequence[UUID] | None = None, *, actor: str, now: datetime | None = None
) -> list[AgentTask]:
    """Cancel deferred retries that newer work replaces; tested again on the locked rows."""
    pairs = superseded(runtime_ids)
    if not pairs:
        return []
    with transaction.atomic():
        rows = transitions.cancel(
            [retry for retry, _ in pairs], actor=actor, only=[Status.DEFERRED], reason="superseded", now=now
        )
        settle.ended(rows, "cancel")
    return rows


def _promote(
    runtime_ids: Sequence[UUID] | None, now: datetime | None, actor: str, limit: int
) -> list[AgentTask] | None:
    try:
        with transaction.atomic():
            rows = transitions.promote(runtime_ids=runtime_ids, actor=actor, limit=limit, now=now)
            events.announce("promote", rows)
            return rows
    except IntegrityError:
        return None


def followers(rows: Iterable[AgentTask], now: datetime | None = None) -> list[AgentTask]:
    """Right after an end: queue what waited behind the ended rows, so that it need not wait for a sweep as well."""
    ended = [row for row in rows if row.status not in ACTIVE and row.issue_id and row.runtime_id]
    waiting = AgentTask.objects.filter(
        status=Status.DEFERRED, issue_id__in={row.issue_id for row in ended}, retry_of_task_id__isnull=True
    ).values_list("runtime_id", flat=True)
    runtime_ids = {runtime_id for runtime_id in waiting if runtime_id is not None} if ended else set()
    return (_promote(sorted(runtime_ids), now, "server", BATCH) or []) if runtime_ids else []


def run_all(now: datetime | None = None) -> int:
    """Promote everywhere; the number promoted."""
    return len(run(now=now))
