"""Tokens. Only SHA-256 hashes are stored; the secret is shown once, when it is made."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from .agents import Agent
from .base import Row
from .tenancy import User, Workspace


class PersonalAccessToken(Row):
    """A `mul_` token: a person's, or a daemon's on that person's behalf. Null workspace: all the user's workspaces."""

    token_hash = models.CharField(max_length=64, unique=True)
    token_prefix = models.CharField(max_length=16)
    user = models.ForeignKey(User, models.CASCADE, related_name="tokens")
    workspace = models.ForeignKey(Workspace, models.CASCADE, null=True, blank=True)
    name = models.TextField(default="", blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "personal_access_token"

    def __str__(self) -> str:
        return f"{self.name or self.token_prefix} of {self.user}"


class TaskToken(models.Model):
    """A `mat_` token: acts only as its task. The row commits with the delivery that it belongs to."""

    token_hash = models.CharField(max_length=64, primary_key=True)
    task = models.ForeignKey(
        "queue_app.AgentTask", models.DO_NOTHING, related_name="tokens", db_constraint=False
    )  # a database cascade, see the migration
    claim_token = models.UUIDField()
    agent = models.ForeignKey(Agent, models.CASCADE)
    workspace = models.ForeignKey(Workspace, models.CASCADE)
    user = models.ForeignKey(User, models.CASCADE)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "task_token"
        indexes: ClassVar = [models.Index(fields=["task"], name="idx_task_token_task")]

    def __str__(self) -> str:
        return f"token of task {self.task_id}"
