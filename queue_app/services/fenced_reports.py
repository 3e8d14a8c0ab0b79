"""What the reports beside a task's state share: one fenced statement, and a judged refusal when it wrote nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection

from queue_app import auth
from queue_app.auth import Caller
from queue_app.services import late_writes
from queue_app.services.access import task_of


@dataclass(frozen=True)
class Written:
    """Whose report was written: the task's address for its event, and the statement's own last column."""

    workspace_id: UUID
    payload: dict[str, Any]
    made: Any


def write(
    sql: str,
    verb: str,
    caller: Caller,
    task_id: UUID | None,
    claim_token: UUID | None,
    values: Mapping[str, Any],
    late: Mapping[str, Any],
) -> Written:
    """Run a statement of `sql.reports`; `late` is what the ledger keeps if the delivery is over.

    Raises StaleClaimError, TaskNotFoundError, NotFoundError.
    """
    reach = sorted(auth.workspace_ids(caller))
    params = {"task_id": task_id, "workspaces": reach, "claim_token": claim_token, **values}
    if task_id is not None:
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
            found = cursor.fetchone()
        if found is not None:
            return _written(task_id, *found)
    task = task_of(caller, task_id)
    late_writes.require_own(task, verb, caller, claim_token, late)
    # Only a delivery that became the row's between the two reads gets here: its next report will pass.
    return Written(task.workspace_id, {}, None)


def _written(
    task_id: UUID, workspace: UUID, agent: UUID, issue: UUID | None, status: str, seq: int, chat: UUID | None, made: Any
) -> Written:
    payload = {
        "task_id": str(task_id),
        "agent_id": str(agent),
        "issue_id": str(issue or ""),
        "status": status,
        "seq": seq,
    }
    if chat:
        payload["chat_session_id"] = str(chat)
    return Written(workspace, payload, made)
