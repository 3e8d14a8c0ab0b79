"""What happened and why: events, claim decisions, refused late writes, operators' acts, transcripts, usage."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from .base import Row
from .task import AgentTask


def _of_task(related_name: str) -> models.ForeignKey[AgentTask, AgentTask]:
    """A reference that the database itself deletes with its task (the constraint is made by the migration)."""
    return models.ForeignKey(
        AgentTask, models.DO_NOTHING, related_name=related_name, db_constraint=False, db_index=False
    )


class TaskEvent(models.Model):
    """One applied verb. Appended by the same statement that changed the row; `hash` chains it to the one before."""

    id = models.BigAutoField(primary_key=True)
    task = _of_task("events")
    seq = models.IntegerField()
    verb = models.CharField(max_length=32)
    from_status = models.CharField(max_length=32, null=True)
    to_status = models.CharField(max_length=32)
    reason = models.TextField(null=True)
    attempt = models.IntegerField()
    claim_token = models.UUIDField(null=True)
    actor = models.TextField()
    at = models.DateTimeField()
    changes = models.JSONField()
    hash = models.BinaryField()

    class Meta:
        db_table = "task_event"
        constraints: ClassVar = [models.UniqueConstraint(fields=["task", "seq"], name="uq_task_event_seq")]

    def __str__(self) -> str:
        return f"{self.seq} {self.verb}"


class ClaimDecision(Row):
    """Why a claim request gave a runtime what it gave. Repeats of an idle outcome are one row with a count."""

    runtime_id = models.UUIDField()
    workspace_id = models.UUIDField(null=True)
    task_id = models.UUIDField(null=True)
    outcome = models.CharField(max_length=64)
    detail = models.JSONField(default=dict)
    door = models.CharField(max_length=8, default="http")
    first_at = models.DateTimeField(db_default=Now())
    last_at = models.DateTimeField(db_default=Now())
    count = models.BigIntegerField(default=1)

    class Meta:
        db_table = "claim_decision"
        indexes: ClassVar = [
            models.Index(fields=["runtime_id", "-last_at"], name="idx_claim_decision_runtime"),
            models.Index(fields=["last_at"], name="idx_claim_decision_age"),
            models.Index(fields=["task_id"], name="idx_claim_decision_task", condition=Q(task_id__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.outcome


class LateWrite(Row):
    """A call that was refused because its delivery was no longer the row's, or came after the end. Nothing changed."""

    task = _of_task("late_writes")
    verb = models.CharField(max_length=32)
    code = models.CharField(max_length=32)
    claim_token = models.UUIDField(null=True)
    current_token = models.UUIDField(null=True)
    status = models.CharField(max_length=32)
    payload = models.JSONField(default=dict)
    actor = models.TextField(default="")

    class Meta:
        db_table = "late_write"
        indexes: ClassVar = [models.Index(fields=["task", "created_at"], name="idx_late_write_task")]

    def __str__(self) -> str:
        return f"{self.verb}: {self.code}"


class AuditEntry(Row):
    """A person's act on the queue: who, what, on which object, why."""

    workspace_id = models.UUIDField(null=True)
    actor_id = models.UUIDField(null=True)
    actor = models.TextField()
    verb = models.CharField(max_length=48)
    object_type = models.CharField(max_length=48)
    object_id = models.UUIDField(null=True)
    note = models.TextField(blank=True, default="")
    detail = models.JSONField(default=dict)

    class Meta:
        db_table = "audit_entry"
        indexes: ClassVar = [models.Index(fields=["object_id", "-created_at"], name="idx_audit_entry_object")]

    def __str__(self) -> str:
        return f"{self.actor} {self.verb}"


class TaskMessage(models.Model):
    """One piece of a run's transcript. A repeat of (task, seq) is ignored."""

    id = models.BigAutoField(primary_key=True)
    task = _of_task("messages")
    seq = models.IntegerField()
    type = models.CharField(max_length=16)
    tool = models.TextField(blank=True, default="")
    content = models.TextField(blank=True, default="")
    input = models.JSONField(null=True)
    output = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "task_message"
        constraints: ClassVar = [models.UniqueConstraint(fields=["task", "seq"], name="uq_task_message_seq")]
        indexes: ClassVar = [models.Index(fields=["created_at"], name="idx_task_message_age")]

    def __str__(self) -> str:
        return f"{self.seq} {self.type}"


class TaskProgress(models.Model):
    """The newest progress line of a task. Apart from the queue row, which progress never touches."""

    task = models.OneToOneField(
        AgentTask, models.DO_NOTHING, primary_key=True, related_name="progress", db_constraint=False
    )
    summary = models.TextField(blank=True, default="")
    step = models.IntegerField(default=0)
    total = models.IntegerField(default=0)
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "task_progress"

    def __str__(self) -> str:
        return self.summary


class TaskUsage(Row):
    """Tokens and cost of one task by provider and model; a later report replaces an earlier one."""

    task = _of_task("usage")
    provider = models.TextField(default="")
    model = models.TextField(default="")
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    cost_usd_ticks = models.BigIntegerField(null=True)
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "task_usage"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["task", "provider", "model"], name="uq_task_usage"),
        ]
        indexes: ClassVar = [models.Index(fields=["updated_at"], name="idx_task_usage_updated")]

    def __str__(self) -> str:
        return f"{self.provider} {self.model}"


class TaskUsageHourly(models.Model):
    """Usage summed by hour, workspace, agent, runtime, provider and model; kept by `rollup_task_usage_hourly`."""

    id = models.BigAutoField(primary_key=True)
    bucket = models.DateTimeField()
    workspace_id = models.UUIDField()
    agent_id = models.UUIDField()
    runtime_id = models.UUIDField(null=True)
    provider = models.TextField(default="")
    model = models.TextField(default="")
    task_count = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    cost_usd_ticks = models.BigIntegerField(default=0)

    class Meta:
        db_table = "task_usage_hourly"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["bucket", "workspace_id", "agent_id", "runtime_id", "provider", "model"],
                name="uq_task_usage_hourly",
                nulls_distinct=False,
            ),
        ]

    def __str__(self) -> str:
        return f"{self.bucket:%Y-%m-%d %H}:00 {self.provider} {self.model}"


class TaskOmission(models.Model):
    """The first heartbeat that left out a task its daemon should hold (design D10); a second one recovers the task."""

    task = models.OneToOneField(
        AgentTask, models.DO_NOTHING, primary_key=True, related_name="omission", db_constraint=False
    )
    claim_token = models.UUIDField()
    incarnation = models.UUIDField()
    seq = models.BigIntegerField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "task_omission"

    def __str__(self) -> str:
        return f"omitted since {self.at}"
