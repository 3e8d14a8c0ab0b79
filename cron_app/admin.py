"""Cron executions, to look at: every plan of every job, who ran it, under which lease, and what came of it."""

from __future__ import annotations

from datetime import timedelta

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from cron_app.models import CronExecution
from queue_app.admin.base import EMPTY, ReadOnlyPage, between, label, short, span

_TONES = {"RUNNING": "busy", "SUCCESS": "good", "FAILED": "bad"}


class StaleFilter(admin.SimpleListFilter):
    title, parameter_name = "lease", "lease"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [("stale", "running, lease over"), ("held", "running, lease held")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[CronExecution]) -> QuerySet[CronExecution]:
        running = queryset.filter(status=CronExecution.Status.RUNNING)
        if self.value() == "stale":
            return running.filter(stale_after__lte=timezone.now())
        return running.filter(stale_after__gt=timezone.now()) if self.value() == "held" else queryset


@admin.register(CronExecution)
class CronExecutionAdmin(ReadOnlyPage):
    list_display = ("job_name", "scope", "plan_time", "state", "attempts", "runner_id", "lease", "duration", "outcome")
    list_filter = ("status", StaleFilter, "job_name")
    search_fields = ("job_name", "scope_id", "runner_id")
    ordering = ("-plan_time", "-id")
    fields = (
        ("job_name", "scope", "plan_time"),
        ("state", "attempts", "next_retry_at"),
        ("runner_id", "lease", "lease_ident", "heartbeat_at", "stale_after"),
        ("started_at", "finished_at", "duration"),
        ("rows_affected", "error_code"),
        "error_msg",
        "result",
        ("created_at", "updated_at"),
    )

    @admin.display(description="scope")
    def scope(self, row: CronExecution) -> str:
        return row.scope_kind if row.scope_kind == row.scope_id else f"{row.scope_kind} {row.scope_id}"

    @admin.display(description="status", ordering="status")
    def state(self, row: CronExecution) -> str:
        return label(row.status.lower(), _TONES[row.status])

    @admin.display(description="attempt")
    def attempts(self, row: CronExecution) -> str:
        return f"{row.attempt} of {row.max_attempts}"

    @admin.display(description="lease")
    def lease(self, row: CronExecution) -> str:
        if row.status != CronExecution.Status.RUNNING or row.stale_after is None:
            return EMPTY
        left = between(timezone.now(), row.stale_after)
        return label("over", "bad") if row.stale_after <= timezone.now() else f"{left} left"

    @admin.display(description="this attempt's lease")
    def lease_ident(self, row: CronExecution) -> str:
        return short(row.lease_token)

    @admin.display(description="took", ordering="duration_ms")
    def duration(self, row: CronExecution) -> str:
        if row.duration_ms is None:
            return EMPTY
        return f"{row.duration_ms} ms" if row.duration_ms < 1000 else span(timedelta(milliseconds=row.duration_ms))

    @admin.display(description="outcome")
    def outcome(self, row: CronExecution) -> str:
        if row.error_code or row.error_msg:
            return f"{row.error_code or ''} {row.error_msg or ''}".strip()[:120]
        return f"{row.rows_affected} rows" if row.rows_affected is not None else str(row.result or "")[:120]
