"""A person leaves a workspace, or is removed from it: their machines and agents stop working there."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from queue_app import events
from queue_app.errors import ConflictError, ForbiddenError, NotFoundError
from queue_app.models import Agent, AgentRuntime, AgentTask, AuditEntry, Member, PersonalAccessToken
from queue_app.services import cancel, liveness
from queue_app.services.scope import Scope, find_workspace, may_administrate, require_person


def leave(where: Scope, workspace_id: UUID, user_id: UUID) -> list[AgentTask]:
    """Remove a member: an admin anyone but owners, an owner anyone, everybody themselves; the last owner stays.

    Their runtimes in the workspace go offline, what is open on those or of their agents is cancelled, and their tokens
    for this workspace alone are revoked. Returns the cancelled tasks. Raises NotFoundError, ForbiddenError and
    ConflictError.
    """
    require_person(where)
    find_workspace(where, workspace_id)
    with transaction.atomic():
        # Locking every owner makes two owners who remove each other take turns.
        owners = Member.objects.select_for_update().filter(workspace_id=workspace_id, role=Member.Role.OWNER)
        owner_ids = [owner.user_id for owner in owners.order_by("id")]
        member = Member.objects.select_for_update().filter(workspace_id=workspace_id, user_id=user_id).first()
        if member is None:
            raise NotFoundError("member not found")
        _check(where, member, owner_ids)
        runtimes = list(AgentRuntime.objects.filter(workspace_id=workspace_id, owner_id=user_id))
        agents = Agent.objects.filter(workspace_id=workspace_id, owner_id=user_id)
        rows = cancel.cancel_for_owner(
            [runtime.id for runtime in runtimes], [agent.id for agent in agents], caller=where.caller
        )
        AgentRuntime.objects.filter(id__in=[r.id for r in runtimes]).update(status=AgentRuntime.Status.OFFLINE)
        tokens = PersonalAccessToken.objects.filter(user_id=user_id, workspace_id=workspace_id, revoked_at=None)
        tokens.update(revoked_at=Now())
        member.delete()
        _record(where, workspace_id, user_id, len(rows))
        transaction.on_commit(lambda: _tell(runtimes))
    return rows


def _check(where: Scope, member: Member, owner_ids: list[UUID]) -> None:
    own = member.user_id == where.caller.user.id
    if not own and not may_administrate(where, member.workspace_id):
        raise ForbiddenError("only an owner or admin of the workspace may remove somebody")
    if not own and member.role == Member.Role.OWNER and where.caller.user.id not in owner_ids:
        raise ForbiddenError("only an owner may remove an owner")
    if owner_ids == [member.user_id]:
        raise ConflictError("the last owner of a workspace cannot leave it")


def _tell(runtimes: list[AgentRuntime]) -> None:
    liveness.forget(runtime.id for runtime in runtimes)
    for runtime in runtimes:
        payload = {"runtime_id": str(runtime.id), "status": "offline"}
        events.publish(runtime.workspace_id, "runtime:status", payload)


def _record(where: Scope, workspace_id: UUID, user_id: UUID, cancelled: int) -> None:
    AuditEntry.objects.create(
        workspace_id=workspace_id,
        actor_id=where.caller.user.id,
        actor=where.caller.actor,
        verb="member.remove",
        object_type="user",
        object_id=user_id,
        detail={"cancelled": cancelled},
    )
