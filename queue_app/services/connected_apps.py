"""A workspace's connected apps, and the copy of them that each task takes along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction

from queue_app.errors import ConflictError, NotFoundError
from queue_app.models import AuditEntry, ConnectedApp
from queue_app.services.scope import Scope, one_workspace, require_admin

FIELDS = ("provider", "server_name", "toolkit_slug", "toolkit_name", "server")


def snapshot(workspace_id: UUID) -> dict[str, Any]:
    """The columns of a new task: the MCP servers (secret) and their public description; both null without apps.

    What is queued keeps them as they are now; the end of the task clears them.
    """
    apps = list(ConnectedApp.objects.filter(workspace_id=workspace_id).order_by("server_name"))
    if not apps:
        return {"runtime_mcp_overlay": None, "runtime_connected_apps": None}
    described = [
        {
            "provider": app.provider,
            "server_name": app.server_name,
            "toolkit_slug": app.toolkit_slug,
            "toolkit_name": app.toolkit_name,
        }
        for app in apps
    ]
    servers = {app.server_name: app.server for app in apps}
    return {"runtime_mcp_overlay": {"mcpServers": servers}, "runtime_connected_apps": described}


def listing(where: Scope) -> list[ConnectedApp]:
    """The connected apps of the scope by name."""
    return list(ConnectedApp.objects.filter(workspace_id__in=where.workspace_ids).order_by("server_name", "id"))


@transaction.atomic
def connect(where: Scope, values: Mapping[str, Any]) -> ConnectedApp:
    """Connect an app; tasks queued from now on get it. Admins only. Raises ConflictError for a taken name."""
    workspace_id = one_workspace(where, values.get("workspace_id"))
    require_admin(where, workspace_id)
    app = ConnectedApp(workspace_id=workspace_id, **{name: values[name] for name in FIELDS if name in values})
    try:
        with transaction.atomic():
            app.save()
    except IntegrityError as error:
        if "uq_connected_app_name" in str(error):
            text = f"server_name: {app.server_name!r} is taken in this workspace"
            raise ConflictError(text, code="name_taken") from None
        raise
    _record(where, app, "connected_app.connect")
    return app


@transaction.atomic
def disconnect(where: Scope, app_id: UUID) -> None:
    """Disconnect an app; tasks that were queued with it keep it until they end. Admins only."""
    app = ConnectedApp.objects.filter(id=app_id, workspace_id__in=where.workspace_ids).first()
    if app is None:
        raise NotFoundError("connected app not found")
    require_admin(where, app.workspace_id)
    _record(where, app, "connected_app.disconnect")
    app.delete()


def _record(where: Scope, app: ConnectedApp, verb: str) -> None:
    AuditEntry.objects.create(
        workspace_id=app.workspace_id,
        actor_id=where.caller.user.id,
        actor=where.caller.actor,
        verb=verb,
        object_type="connected_app",
        object_id=app.id,
        detail={"server_name": app.server_name, "provider": app.provider},
    )
