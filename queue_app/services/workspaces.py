"""The workspaces of a caller, and what a daemon needs to know of one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from queue_app import auth
from queue_app.auth import Caller
from queue_app.models import RuntimeProfile, Workspace
from queue_app.services.access import workspace_of
from queue_app.services.register import repos_of


def mine(caller: Caller) -> list[Workspace]:
    """Every workspace the caller may touch, by name."""
    return list(Workspace.objects.filter(pk__in=auth.workspace_ids(caller)).order_by("name", "id"))


def one(caller: Caller, workspace_id: UUID | None) -> Workspace:
    """One of them; raises NotFoundError."""
    return workspace_of(caller, workspace_id)


def repos(caller: Caller, workspace_id: UUID | None) -> dict[str, Any]:
    """The checkout allow-list of a workspace, as a daemon reads it before every checkout."""
    workspace = workspace_of(caller, workspace_id)
    return {"workspace_id": str(workspace.pk), **repos_of(workspace)}


def runtime_profiles(caller: Caller, workspace_id: UUID | None) -> dict[str, Any]:
    """The enabled runtime profiles of a workspace, by name."""
    workspace = workspace_of(caller, workspace_id)
    rows = RuntimeProfile.objects.filter(workspace=workspace, enabled=True).order_by("display_name", "id")
    return {"workspace_id": str(workspace.pk), "runtime_profiles": [_profile(row) for row in rows]}


def _profile(row: RuntimeProfile) -> dict[str, Any]:
    args = row.fixed_args if isinstance(row.fixed_args, list) else []
    return {
        "id": str(row.pk),
        "workspace_id": str(row.workspace_id),
        "display_name": row.display_name,
        "protocol_family": row.protocol_family,
        "command_name": row.command_name,
        "description": row.description or None,
        "fixed_args": [str(arg) for arg in args],
        "visibility": row.visibility,
        "enabled": row.enabled,
    }
