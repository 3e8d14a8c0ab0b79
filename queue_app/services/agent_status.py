"""What an agent is seen to be doing: `working` while it has a dispatched or running task, else `idle`.

It is derived and never decides anything. It is written after the commit that changed the tasks, in a transaction of its
own, so no task row is ever held while an agent row is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import connection, transaction

from queue_app import events
from queue_app.domain.states import Status

_BUSY = f"""CASE WHEN EXISTS (
   SELECT 1 FROM agent_task_queue t WHERE t.agent_id = a.id AND t.status IN ('{Status.DISPATCHED}', '{Status.RUNNING}'))
 THEN 'working' ELSE 'idle' END"""
_DIFFERENT = f"""SELECT a.id FROM agent a
 WHERE a.id = ANY(%s) AND a.status IN ('working', 'idle') AND a.status <> {_BUSY} ORDER BY a.id"""
_LOCK = "SELECT 1 FROM agent WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"
_WRITE = f"""UPDATE agent a SET status = {_BUSY}, updated_at = now()
 WHERE a.id = ANY(%s) AND a.status IN ('working', 'idle') AND a.status <> {_BUSY}
RETURNING a.id, a.workspace_id, a.status"""


def refresh(agent_ids: Iterable[UUID]) -> None:
    """After the commit of the caller's transaction, bring these agents' status up to date and tell the clients.

    One read when nothing changed. Other statuses (blocked, error, offline) are left alone.
    """
    ids = sorted(set(agent_ids))
    if ids:
        transaction.on_commit(lambda: _refresh(ids), robust=True)


def _refresh(agent_ids: list[UUID]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_DIFFERENT, [agent_ids])
        changing = [row[0] for row in cursor.fetchall()]
        if not changing:
            return
        with transaction.atomic():
            # Counted in a statement after the lock: with the lock's own snapshot a refresh that waited for another
            # would write what was true before it.
            cursor.execute(_LOCK, [changing])
            cursor.execute(_WRITE, [changing])
            written = cursor.fetchall()
    for agent_id, workspace_id, status in written:
        events.publish(workspace_id, "agent:status", {"agent_id": str(agent_id), "status": status})
