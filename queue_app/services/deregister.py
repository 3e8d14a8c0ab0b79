"""A daemon goes away, or cannot run some of its runtimes any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from django.db import connection, transaction

from queue_app import auth, events
from queue_app.auth import Caller
from queue_app.services import liveness
from queue_app.sql.runtimes import OFFLINE
from queue_app.wire.daemon import ident_of

REASON_LIMIT = 8 * 1024


def deregister(caller: Caller, runtime_ids: Sequence[str], reasons: Mapping[str, Any] | None = None) -> list[UUID]:
    """Take runtimes offline, keeping the reason if one is given; their tasks stay as they are.

    Ids that are unknown or out of reach are skipped. Returns the ids that went offline.
    """
    given = {runtime_id: text for text in runtime_ids if (runtime_id := ident_of(text)) is not None}
    if not given:
        return []
    ids = sorted(given)
    notes = [_note((reasons or {}).get(given[runtime_id])) for runtime_id in ids]
    params: dict[str, Any] = {"ids": ids, "reasons": notes, "workspaces": sorted(auth.workspace_ids(caller))}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(OFFLINE, params)
        gone = cursor.fetchall()
    liveness.forget(runtime_id for runtime_id, _ in gone)
    for runtime_id, workspace_id in gone:
        events.publish(workspace_id, "runtime:status", {"runtime_id": str(runtime_id), "status": "offline"})
    return [runtime_id for runtime_id, _ in gone]


def _note(reason: Any) -> str | None:
    if not isinstance(reason, Mapping):
        return None
    text = msgspec.json.encode(reason).decode()
    return text if len(text) <= REASON_LIMIT else None
