"""What the server has to tell one person."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from .base import Row
from .tenancy import User, Workspace
from .work import Issue

INBOX_TYPES = ("quick_create_done", "quick_create_failed")


class InboxItem(Row):
    """One message to one person, about a task; there is at most one of a type for a task.

    `task_id` is a plain id: the message outlives the task.
    """

    workspace = models.ForeignKey(Workspace, models.CASCADE, db_index=False)
    user = models.ForeignKey(User, models.CASCADE, db_index=False)
    type = models.CharField(max_length=32, choices=[(name, name) for name in INBOX_TYPES])
    title = models.TextField()
    body = models.TextField(blank=True, default="")
    issue = models.ForeignKey(Issue, models.SET_NULL, null=True, blank=True)
    task_id = models.UUIDField(null=True, blank=True)
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "inbox_item"
        indexes: ClassVar = [models.Index(fields=["user", "-created_at"], name="idx_inbox_user")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "type", "task_id"], name="uq_inbox_item"),
        ]

    def __str__(self) -> str:
        return self.title
