"""One line about how far a run is."""

from __future__ import annotations

from uuid import UUID

from queue_app import events
from queue_app.auth import Caller
from queue_app.services import fenced_reports
from queue_app.sql.reports import WRITE_PROGRESS

SUMMARY_LIMIT = 2000


def report_progress(
    caller: Caller, task_id: UUID | None, *, claim_token: UUID | None, summary: str, step: int, total: int
) -> bool:
    """Keep the newest progress of an active task and tell the clients; after the end nothing changes (False).

    Raises StaleClaimError, TaskNotFoundError, NotFoundError.
    """
    said = {"summary": summary[:SUMMARY_LIMIT], "step": step, "total": total}
    written = fenced_reports.write(WRITE_PROGRESS, "progress", caller, task_id, claim_token, said, said)
    if written.made:
        events.publish(written.workspace_id, "task:progress", {**written.payload, **said})
    return bool(written.made)
