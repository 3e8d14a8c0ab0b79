"""Whether a daemon may delete the local directory of something. Every doubt must read as "keep"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from queue_app import auth
from queue_app.auth import Caller
from queue_app.errors import ForbiddenError, InvalidError, NotFoundError, TaskNotFoundError
from queue_app.models import AgentTask, Issue
from queue_app.models.work import ISSUE_STATUSES
from queue_app.services.access import require_workspace
from queue_app.wire.daemon import ident_of

MOST_ISSUES = 500
STILL_OPEN = "in_progress"


def issues(caller: Caller, workspace_id: UUID | None, issue_ids: Sequence[str]) -> list[dict[str, Any]]:
    """One entry for each asked id, in the same order and spelling; `found` is whether the workspace has the issue.

    Raises ForbiddenError for a workspace out of reach, existing or not, and InvalidError for more than 500 ids.
    """
    workspace = require_workspace(caller, workspace_id)
    if len(issue_ids) > MOST_ISSUES:
        raise InvalidError(f"issue_ids: at most {MOST_ISSUES}", field="issue_ids")
    wanted = {text: ident_of(text) for text in issue_ids}
    rows = Issue.objects.filter(workspace_id=workspace, pk__in={i for i in wanted.values() if i})
    found = {row.pk: row for row in rows.only("status", "updated_at")}
    return [_entry(text, found.get(wanted[text])) for text in issue_ids]  # type: ignore[arg-type]


def _entry(asked: str, issue: Issue | None) -> dict[str, Any]:
    if issue is None:
        return {"id": asked, "found": False}
    return {"id": asked, "found": True, **_state(issue)}


def _state(issue: Issue) -> dict[str, Any]:
    # A status of the user's own invention must not read as finished.
    status = issue.status if issue.status in ISSUE_STATUSES else STILL_OPEN
    return {"status": status, "updated_at": issue.updated_at.isoformat()}


def issue(caller: Caller, issue_id: UUID | None) -> dict[str, Any]:
    """Status and time of the last change of one issue; NotFoundError only when there is no such issue."""
    found = Issue.objects.filter(pk=issue_id).first() if issue_id is not None else None
    if found is None:
        raise NotFoundError("issue not found")
    if found.workspace_id not in auth.workspace_ids(caller):
        raise ForbiddenError("no access to this issue")
    return _state(found)


def task(caller: Caller, task_id: UUID | None) -> dict[str, Any]:
    """Status and end of one task; TaskNotFoundError only when there is no such task."""
    found = AgentTask.objects.filter(pk=task_id).first() if task_id is not None else None
    if found is None:
        raise TaskNotFoundError
    if found.workspace_id not in auth.workspace_ids(caller):
        raise ForbiddenError("no access to this task")
    ended = found.completed_at
    return {"status": found.status, "completed_at": ended.isoformat() if ended else None}
