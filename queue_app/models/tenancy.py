"""Who owns what: users, workspaces and their members."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.db import models

from .base import Row, new_id


class User(AbstractUser):
    """A person. The key is a UUID, since user ids travel on the wire as opaque strings."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)

    class Meta(AbstractUser.Meta):
        db_table = "user"


class Workspace(Row):
    """The tenant: everything else belongs to exactly one workspace."""

    name = models.TextField()
    slug = models.SlugField(max_length=64, unique=True)
    issue_prefix = models.CharField(max_length=8, default="MUL")
    issue_counter = models.PositiveIntegerField(db_default=0)
    description = models.TextField(blank=True, default="")
    context = models.TextField(blank=True, default="")
    repos = models.JSONField(default=list, blank=True)
    settings = models.JSONField(default=dict, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "workspace"
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class Member(Row):
    """A user's place in a workspace."""

    class Role(models.TextChoices):
        OWNER = "owner"
        ADMIN = "admin"
        MEMBER = "member"

    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="members")
    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        db_table = "member"
        constraints: ClassVar = [models.UniqueConstraint(fields=["workspace", "user"], name="uq_member")]

    def __str__(self) -> str:
        return f"{self.user} in {self.workspace}"
