"""`sys_cron_executions`: one row is one plan of one job for one scope; lock, audit, retry and catch-up in one table."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from uuid_utils.compat import uuid7


class CronExecution(models.Model):
    """A plan and its present attempt. Changed only by `cron_app.transitions`, under the lease's token."""

    class Status(models.TextChoices):
        RUNNING = "RUNNING"
        SUCCESS = "SUCCESS"
        FAILED = "FAILED"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    job_name = models.TextField()
    scope_kind = models.TextField(db_default="global")
    scope_id = models.TextField(db_default="global")
    plan_time = models.DateTimeField()
    status = models.TextField(choices=Status.choices)
    attempt = models.IntegerField(db_default=1)
    max_attempts = models.IntegerField(db_default=3)
    next_retry_at = models.DateTimeField(null=True, blank=True)
    runner_id = models.TextField(null=True, blank=True)
    lease_token = models.UUIDField()
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    stale_after = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    duration_ms = models.IntegerField(null=True, blank=True)
    rows_affected = models.BigIntegerField(null=True, blank=True)
    result = models.JSONField(default=dict, blank=True)
    error_code = models.TextField(null=True, blank=True)
    error_msg = models.TextField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "sys_cron_executions"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["job_name", "scope_kind", "scope_id", "plan_time"], name="uq_sys_cron_execution"
            ),
            models.CheckConstraint(
                condition=Q(status__in=["RUNNING", "SUCCESS", "FAILED"]), name="sys_cron_status_check"
            ),
            models.CheckConstraint(
                condition=Q(attempt__gte=1) & Q(attempt__lte=F("max_attempts")), name="sys_cron_attempt_check"
            ),
            models.CheckConstraint(
                condition=Q(duration_ms__isnull=True) | Q(duration_ms__gte=0), name="sys_cron_duration_check"
            ),
            models.CheckConstraint(
                condition=(
                    Q(status="RUNNING", finished_at__isnull=True, stale_after__isnull=False)
                    | (~Q(status="RUNNING") & Q(finished_at__isnull=False))
                ),
                name="sys_cron_running_has_lease",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["stale_after"], name="idx_sys_cron_exec_stale", condition=Q(status="RUNNING")),
            models.Index(
                "job_name",
                F("plan_time").desc(),
                name="idx_sys_cron_exec_failed",
                condition=Q(status="FAILED"),
            ),
            models.Index(
                fields=["finished_at"],
                name="idx_sys_cron_exec_finished",
                condition=Q(status__in=["SUCCESS", "FAILED"]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_name} {self.plan_time:%Y-%m-%d %H:%M} ({self.status})"
