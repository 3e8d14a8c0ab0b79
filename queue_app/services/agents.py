"""Agents of a workspace: people make and change them; tasks may only see who there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from queue_app import events
from queue_app.errors import ConflictError, ForbiddenError, InvalidError
from queue_app.models import Agent, AgentRuntime, AuditEntry
from queue_app.services import cancel
from queue_app.services.scope import (
    Scope,
    find_agent,
    may_administrate,
    one_workspace,
    require_person,
)

WRITABLE = frozenset(
    {
        "name",
        "runtime_id",
        "max_concurrent_tasks",
        "instructions",
        "custom_env",
        "custom_args",
        "mcp_config",
        "model",
        "thinking_level",
        "service_tier",
        "runtime_config",
        "retry_rate_limits",
        "visibility",
    }
)


def listing(where: Scope, *, archived: bool = False) -> list[Agent]:
    """The agents of the scope by name; archived ones only if asked."""
    rows = Agent.objects.filter(workspace_id__in=where.workspace_ids).select_related("runtime")
    if not archived:
        rows = rows.filter(archived_at=None)
    return list(rows.order_by("name", "id"))


def runtimes(where: Scope) -> list[AgentRuntime]:
    """The runtimes of the scope by name: where agents of these workspaces can work."""
    return list(AgentRuntime.objects.filter(workspace_id__in=where.workspace_ids).order_by("name", "id"))


@transaction.atomic
def create(where: Scope, values: Mapping[str, Any]) -> Agent:
    """Make an agent that its maker owns. Raises ConflictError for a taken name, InvalidError with the field."""
    require_person(where)
    workspace_id = one_workspace(where, values.get("workspace_id"))
    fields = {name: value for name, value in values.items() if name in WRITABLE}
    _check_runtime(workspace_id, fields.get("runtime_id"))
    agent = Agent(workspace_id=workspace_id, owner=where.caller.user, **fields)
    _save(agent)
    _record(where, "agent.create", agent, sorted(fields))
    return find_agent(where, agent.id)


@transaction.atomic
def update(where: Scope, agent_id: UUID, values: Mapping[str, Any]) -> Agent:
    """Change an agent: its owner, or an admin of the workspace. Waiting tasks keep the runtime they were made for.

    `archived` true cancels everything open of it, stops new work and keeps its history; false brings it back.
    """
    require_person(where)
    agent = find_agent(where, agent_id)
    if agent.owner_id != where.caller.user.id and not may_administrate(where, agent.workspace_id):
        raise ForbiddenError("only the agent's owner or an admin of the workspace may change it")
    fields = {name: value for name, value in values.items() if name in WRITABLE}
    _check_runtime(agent.workspace_id, fields.get("runtime_id"))
    if values.get("archived"):
        # The strong lock meets the key share of every enqueue: one that is under way is seen below and cancelled, one
        # that waits finds the agent archived.
        Agent.objects.select_for_update().filter(id=agent.id).first()
    for name, value in fields.items():
        setattr(agent, name, value)
    changed = sorted(fields)
    if values.get("archived") is not None:
        agent.archived_at = (agent.archived_at or timezone.now()) if values["archived"] else None
        changed.append("archived_at")
    _save(agent, changed)
    if values.get("archived"):
        cancel.cancel_for_agent(agent, caller=where.caller)
    _record(where, "agent.update", agent, changed)
    runtime_ids = [agent.runtime_id] if agent.runtime_id else []
    # A larger cap, an unarchived agent: rows that were blocked may be claimable now.
    transaction.on_commit(lambda: events.wake(runtime_ids))
    return find_agent(where, agent.id)


def _check_runtime(workspace_id: UUID, runtime_id: UUID | None) -> None:
    if runtime_id is not None and not AgentRuntime.objects.filter(id=runtime_id, workspace_id=workspace_id).exists():
        raise InvalidError("runtime_id: no such runtime in this workspace", field="runtime_id")


def _save(agent: Agent, changed: list[str] | None = None) -> None:
    fields = None if changed is None else [*changed, "updated_at"]
    columns = None if fields is None else [name.removesuffix("_id") for name in fields]
    try:
        with transaction.atomic():
            agent.save(update_fields=columns)
    except IntegrityError as error:
        if "uq_agent_name" in str(error):
            raise ConflictError(f"name: {agent.name!r} is taken in this workspace", code="name_taken") from None
        raise


def _record(where: Scope, verb: str, agent: Agent, changed: list[str]) -> None:
    AuditEntry.objects.create(
        workspace_id=agent.workspace_id,
        actor_id=where.caller.user.id,
        actor=where.caller.actor,
        verb=verb,
        object_type="agent",
        object_id=agent.id,
        detail={"name": agent.name, "changed": changed},
    )
