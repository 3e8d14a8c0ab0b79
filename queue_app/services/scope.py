"""What a caller may see: the workspaces of one request, and the rows that are found through them.

A row of another workspace is looked up with the same statement and answered with the same error as a row that does
not exist, so nobody learns of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from queue_app import auth
from queue_app.auth import Caller
from queue_app.errors import ForbiddenError, InvalidError, NotFoundError
from queue_app.models import Agent, Member, Workspace


@dataclass(frozen=True)
class Scope:
    """A caller and the workspaces that this request may touch: never more than the caller's own."""

    caller: Caller
    workspace_ids: frozenset[UUID]

    @property
    def author_type(self) -> str:
        """`agent` for a call with a task token, `member` for a person's."""
        return "agent" if self.caller.kind == "task" else "member"

    @property
    def author_id(self) -> UUID | None:
        """The agent that acts, or the person."""
        return self.caller.agent_id if self.caller.kind == "task" else self.caller.user.id

    @property
    def task_id(self) -> UUID | None:
        """The task whose token was used, if any."""
        return self.caller.task.id if self.caller.task is not None else None


def scope(caller: Caller, wanted: UUID | None = None) -> Scope:
    """The scope of a request that may name a workspace.

    A task token is always in its own workspace, whatever the request names. A person is in all workspaces of the
    token, or in the named one; one that the person is not in leaves nothing to be found.
    """
    mine = auth.workspace_ids(caller)
    if wanted is None or caller.kind == "task":
        return Scope(caller, mine)
    return Scope(caller, mine & {wanted})


def require_person(where: Scope) -> None:
    """Refuse a task token: agents may not change who works here, on what machine, or with which code."""
    if where.caller.kind != "user":
        raise ForbiddenError("only a person may do this, not a task")


def role_in(where: Scope, workspace_id: UUID) -> str | None:
    """The person's role in a workspace of the scope, None outside it."""
    if workspace_id not in where.workspace_ids:
        return None
    member = Member.objects.filter(workspace_id=workspace_id, user_id=where.caller.user.id).only("role").first()
    return member.role if member else None


def may_administrate(where: Scope, workspace_id: UUID) -> bool:
    """Whether the caller is a person with the role owner or admin in the workspace."""
    return where.caller.kind == "user" and role_in(where, workspace_id) in (Member.Role.OWNER, Member.Role.ADMIN)


def require_admin(where: Scope, workspace_id: UUID) -> None:
    """Refuse everyone but owners and admins of the workspace."""
    require_person(where)
    if not may_administrate(where, workspace_id):
        raise ForbiddenError("only an owner or admin of the workspace may do this")


def one_workspace(where: Scope, given: UUID | None = None) -> UUID:
    """The workspace to create something in: the given one, or the only one there is."""
    if where.caller.kind != "task" and given is not None:
        if given in where.workspace_ids:
            return given
        raise NotFoundError("workspace not found")
    if len(where.workspace_ids) == 1:
        return next(iter(where.workspace_ids))
    if not where.workspace_ids:
        raise NotFoundError("workspace not found")
    raise InvalidError("workspace_id: you are in several workspaces, say which", field="workspace_id")


def find_workspace(where: Scope, workspace_id: UUID) -> Workspace:
    """A workspace of the scope, or NotFoundError."""
    if workspace_id in where.workspace_ids:
        found = Workspace.objects.filter(id=workspace_id).first()
        if found is not None:
            return found
    raise NotFoundError("workspace not found")


def find_agent(where: Scope, agent_id: UUID) -> Agent:
    """An agent of the scope, archived ones included, or NotFoundError."""
    found = Agent.objects.filter(id=agent_id, workspace_id__in=where.workspace_ids).select_related("runtime").first()
    if found is None:
        raise NotFoundError("agent not found")
    return found
