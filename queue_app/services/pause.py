"""A person stops an agent or a runtime from getting new work, for a while or until told otherwise."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from queue_app import auth, events
from queue_app.auth import Caller
from queue_app.domain.redaction import clean
from queue_app.errors import NotFoundError
from queue_app.models import Agent, AgentRuntime, AuditEntry

Target = type[Agent] | type[AgentRuntime]


def pause(caller: Caller, kind: Target, ident: UUID, *, until: datetime | None = None, note: str = "") -> bool:
    """Give no new work to an agent or runtime; what runs goes on. False if it was paused already.

    `until` ends the pause by itself. Raises NotFoundError for a row out of the caller's reach.
    """
    with transaction.atomic():
        row = _locked(caller, kind, ident)
        if row.paused_at is not None and (row.paused_until is None or row.paused_until == until):
            return False
        note = clean(note)
        kind.objects.filter(id=row.id).update(paused_at=Now(), paused_until=until, pause_note=note)
        _record(caller, "pause", row, note, until)
    return True


def resume(caller: Caller, kind: Target, ident: UUID, *, note: str = "") -> bool:
    """Let work through again and wake the runtime; False if it was not paused. Raises NotFoundError."""
    with transaction.atomic():
        row = _locked(caller, kind, ident)
        if row.paused_at is None:
            return False
        kind.objects.filter(id=row.id).update(paused_at=None, paused_until=None, pause_note="")
        _record(caller, "resume", row, clean(note), None)
        runtime_id = row.runtime_id if isinstance(row, Agent) else row.id
        transaction.on_commit(lambda: events.wake([runtime_id] if runtime_id else []))
    return True


def _locked(caller: Caller, kind: Target, ident: UUID) -> Agent | AgentRuntime:
    rows = kind.objects.filter(id=ident, workspace_id__in=auth.workspace_ids(caller))
    row: Agent | AgentRuntime | None = rows.select_for_update(no_key=True).first()
    if row is None:
        raise NotFoundError("not found")
    return row


def _record(caller: Caller, verb: str, row: Agent | AgentRuntime, note: str, until: datetime | None) -> None:
    AuditEntry.objects.create(
        workspace_id=row.workspace_id,
        actor_id=caller.user.id,
        actor=caller.actor,
        verb=verb,
        object_type="agent" if isinstance(row, Agent) else "runtime",
        object_id=row.id,
        note=note,
        detail={"name": str(row), "until": until.isoformat() if until else None},
    )
