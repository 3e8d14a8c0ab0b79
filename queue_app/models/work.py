"""What people and agents work on: issues and their comments."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from .base import Row
from .tenancy import Workspace

ISSUE_STATUSES = ("backlog", "todo", "in_progress", "in_review", "done", "blocked", "cancelled")
ISSUE_PRIORITIES = ("urgent", "high", "medium", "low", "none")


class Issue(Row):
    """One piece of work. Its status is changed by people and agents, never by the queue."""

    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="issues")
    number = models.PositiveIntegerField()
    title = models.TextField()
    description = models.TextField(blank=True, default="")
    status = models.CharField(max_length=32, default="todo")
    priority = models.CharField(max_length=16, default="none")
    assignee_type = models.CharField(max_length=16, blank=True, default="")
    assignee_id = models.UUIDField(null=True, blank=True)
    creator_type = models.CharField(max_length=16, default="member")
    creator_id = models.UUIDField(null=True, blank=True)
    parent_issue = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="children")
    position = models.FloatField(default=0)
    stage = models.IntegerField(null=True, blank=True)
    start_date = models.DateField(null=True, blank=True)
    due_date = models.DateField(null=True, blank=True)
    origin_type = models.CharField(max_length=32, blank=True, default="")
    origin_id = models.UUIDField(null=True, blank=True)
    metadata = models.JSONField(default=dict, blank=True)
    first_executed_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "issue"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["workspace", "number"], name="uq_issue_number"),
            models.CheckConstraint(condition=Q(priority__in=ISSUE_PRIORITIES), name="issue_priority_check"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["workspace", "status", "-created_at"], name="idx_issue_listing"),
            models.Index(fields=["origin_id"], name="idx_issue_origin", condition=Q(origin_id__isnull=False)),
        ]

    @property
    def identifier(self) -> str:
        """The key that people type, such as `MUL-12`."""
        return f"{self.workspace.issue_prefix}-{self.number}"

    def __str__(self) -> str:
        return self.title


class Comment(Row):
    """A remark on an issue by a member, an agent or the server itself."""

    workspace = models.ForeignKey(Workspace, models.CASCADE)
    issue = models.ForeignKey(Issue, models.CASCADE, related_name="comments")
    parent = models.ForeignKey("self", models.CASCADE, null=True, blank=True, related_name="replies")
    author_type = models.CharField(max_length=16)
    author_id = models.UUIDField(null=True, blank=True)
    content = models.TextField()
    type = models.CharField(max_length=32, default="comment")
    source_task_id = models.UUIDField(null=True, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "comment"
        indexes: ClassVar = [
            models.Index(fields=["issue", "created_at"], name="idx_comment_issue"),
            models.Index(
                fields=["source_task_id"], name="idx_comment_source_task", condition=Q(source_task_id__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.content[:60]
