"""Agents, the runtimes that carry them, and runtime profiles."""

from __future__ import annotations

from typing import ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from .base import Row
from .tenancy import User, Workspace


class RuntimeProfile(Row):
    """A command of the user's own that a daemon offers as a runtime."""

    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="runtime_profiles")
    display_name = models.TextField()
    protocol_family = models.CharField(max_length=32)
    command_name = models.TextField()
    description = models.TextField(blank=True, default="")
    fixed_args = models.JSONField(default=list, blank=True)
    visibility = models.CharField(max_length=16, default="workspace")
    enabled = models.BooleanField(default=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "runtime_profile"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["workspace", "display_name"], name="uq_runtime_profile_name")
        ]

    def __str__(self) -> str:
        return self.display_name


class Pausable(models.Model):
    """Paused by a person: nothing is claimed until `paused_until`, or for ever when that is null."""

    paused_at = models.DateTimeField(null=True, blank=True)
    paused_until = models.DateTimeField(null=True, blank=True)
    pause_note = models.TextField(blank=True, default="")

    class Meta:
        abstract = True


class AgentRuntime(Row, Pausable):
    """One registered daemon with one agent kind.

    `fresh_since` is the start of the present unbroken stretch of being heard; the stop hold of D3 counts from it.
    """

    class Status(models.TextChoices):
        ONLINE = "online"
        OFFLINE = "offline"

    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="runtimes")
    daemon_id = models.TextField(blank=True, default="")
    name = models.TextField()
    custom_name = models.TextField(blank=True, default="")
    provider = models.CharField(max_length=64)
    profile = models.ForeignKey(
        RuntimeProfile, models.SET_NULL, null=True, blank=True, related_name="runtimes", db_constraint=True
    )
    runtime_mode = models.CharField(max_length=16, default="local")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.OFFLINE)
    last_seen_at = models.DateTimeField(null=True, blank=True)
    fresh_since = models.DateTimeField(null=True, blank=True)
    owner = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="runtimes")
    device_info = models.TextField(blank=True, default="")
    metadata = models.JSONField(default=dict, blank=True)
    incarnation = models.UUIDField(null=True, blank=True)
    heartbeat_seq = models.BigIntegerField(db_default=0)
    slots = models.JSONField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "agent_runtime"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["workspace", "daemon_id", "provider"],
                condition=Q(profile__isnull=True),
                name="uq_agent_runtime_builtin",
            ),
            models.UniqueConstraint(
                fields=["workspace", "daemon_id", "profile"],
                condition=Q(profile__isnull=False),
                name="uq_agent_runtime_profile",
            ),
            models.CheckConstraint(condition=Q(status__in=["online", "offline"]), name="agent_runtime_status_check"),
        ]

    def __str__(self) -> str:
        return self.custom_name or self.name


class Agent(Row, Pausable):
    """A coding agent of a workspace: instructions, model and cap, bound to one runtime."""

    class Status(models.TextChoices):
        IDLE = "idle"
        WORKING = "working"
        BLOCKED = "blocked"
        ERROR = "error"
        OFFLINE = "offline"

    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="agents")
    name = models.TextField()
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.IDLE)
    max_concurrent_tasks = models.PositiveSmallIntegerField(
        default=6, validators=[MinValueValidator(1), MaxValueValidator(50)]
    )
    runtime = models.ForeignKey(AgentRuntime, models.PROTECT, null=True, blank=True, related_name="agents")
    owner = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="agents")
    archived_at = models.DateTimeField(null=True, blank=True)
    kind = models.CharField(max_length=16, default="user")
    visibility = models.CharField(max_length=16, default="workspace")
    instructions = models.TextField(blank=True, default="")
    custom_env = models.JSONField(default=dict, blank=True)
    custom_args = models.JSONField(default=list, blank=True)
    mcp_config = models.JSONField(null=True, blank=True)
    model = models.TextField(blank=True, default="")
    thinking_level = models.TextField(blank=True, default="")
    service_tier = models.TextField(blank=True, default="")
    runtime_config = models.JSONField(default=dict, blank=True)
    retry_rate_limits = models.BooleanField(default=False)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "agent"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["workspace", "name"], name="uq_agent_name"),
            models.CheckConstraint(
                condition=Q(max_concurrent_tasks__gte=1, max_concurrent_tasks__lte=50), name="agent_cap_check"
            ),
        ]

    def __str__(self) -> str:
        return self.name
