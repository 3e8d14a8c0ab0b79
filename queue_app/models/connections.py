"""Apps that a workspace has connected: MCP servers that its agents get beside their own."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from .base import Row
from .tenancy import Workspace


class ConnectedApp(Row):
    """One MCP server of a workspace. `server` may hold secrets and never leaves the server except to a daemon."""

    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="connected_apps")
    provider = models.CharField(max_length=64)
    server_name = models.CharField(max_length=64)
    toolkit_slug = models.CharField(max_length=64, blank=True, default="")
    toolkit_name = models.TextField(blank=True, default="")
    server = models.JSONField()

    class Meta:
        db_table = "connected_app"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["workspace", "server_name"], name="uq_connected_app_name"),
        ]

    def __str__(self) -> str:
        return self.server_name
