"""The rows that a daemon's call names, if the caller may touch them.

A row that does not exist gets the words that daemons act on (`task not found`, `runtime not found`); one that exists
in a workspace out of reach gets other words, so that no daemon drops work for a lack of rights.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from queue_app import auth
from queue_app.auth import Caller
from queue_app.errors import ForbiddenError, NotFoundError, RuntimeNotFoundError, TaskNotFoundError
from queue_app.models import AgentRuntime, AgentTask, Workspace

OUT_OF_REACH = "not found"


def task_of(caller: Caller, task_id: UUID | None) -> AgentTask:
    """The task as it is now; raises TaskNotFoundError or NotFoundError. None stands for an id that cannot exist."""
    task = AgentTask.objects.filter(pk=task_id).first() if task_id is not None else None
    if task is None:
        raise TaskNotFoundError
    if task.workspace_id not in auth.workspace_ids(caller):
        raise NotFoundError(OUT_OF_REACH)
    return task


def runtime_of(caller: Caller, runtime_id: UUID | None) -> AgentRuntime:
    """The runtime as it is now; raises RuntimeNotFoundError or NotFoundError."""
    runtime = AgentRuntime.objects.filter(pk=runtime_id).first() if runtime_id is not None else None
    if runtime is None:
        raise RuntimeNotFoundError
    if runtime.workspace_id not in auth.workspace_ids(caller):
        raise NotFoundError(OUT_OF_REACH)
    return runtime


def workspace_of(caller: Caller, workspace_id: UUID | None) -> Workspace:
    """The workspace; one that is missing and one that is out of reach look the same."""
    if workspace_id is not None and workspace_id in auth.workspace_ids(caller):
        found = Workspace.objects.filter(pk=workspace_id).first()
        if found is not None:
            return found
    raise NotFoundError("workspace not found")


def require_person(caller: Caller) -> None:
    """Refuse a task's token where only a person or a daemon may act."""
    if caller.kind != "user":
        raise ForbiddenError("a task may not do this")


def require_workspace(caller: Caller, workspace_id: UUID | None) -> UUID:
    """The id of a workspace within reach; anything else is forbidden (checks that decide about deletion)."""
    if workspace_id is None or workspace_id not in auth.workspace_ids(caller):
        raise ForbiddenError("no access to this workspace")
    return workspace_id


def runtimes_of(caller: Caller, runtime_ids: Sequence[UUID | None]) -> frozenset[UUID]:
    """These runtimes, all of them; raises RuntimeNotFoundError or NotFoundError if one is missing or out of reach."""
    wanted = set(runtime_ids)
    rows = AgentRuntime.objects.filter(pk__in=[runtime_id for runtime_id in wanted if runtime_id is not None])
    found = dict(rows.values_list("pk", "workspace_id")) if wanted else {}
    if wanted - found.keys():
        raise RuntimeNotFoundError
    if not auth.workspace_ids(caller).issuperset(found.values()):
        raise NotFoundError(OUT_OF_REACH)
    return frozenset(found)
