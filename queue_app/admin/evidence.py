"""Claim decisions, refused late writes, operators' acts: records that nobody edits."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from queue_app.admin.base import EMPTY, ReadOnlyPage, between, label, link_to, short
from queue_app.admin.filters import RuntimeFilter, WorkspaceFilter
from queue_app.decisions import Outcome
from queue_app.models import AuditEntry, ClaimDecision, LateWrite


class OutcomeFilter(admin.SimpleListFilter):
    title = parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [(outcome.value, outcome.value) for outcome in Outcome]

    def queryset(self, request: HttpRequest, queryset: QuerySet[ClaimDecision]) -> QuerySet[ClaimDecision]:
        return queryset.filter(outcome=self.value()) if self.value() else queryset


@admin.register(ClaimDecision)
class ClaimDecisionAdmin(ReadOnlyPage):
    """Why a claim gave a runtime what it gave. Repeats of one idle outcome are one row."""

    list_display = ("last_at", "outcome_label", "runtime", "task", "door", "count", "lasted", "detail")
    list_filter = (OutcomeFilter, RuntimeFilter, "door", WorkspaceFilter)
    date_hierarchy = None
    ordering = ("-last_at", "-id")
    search_fields = ("task_id", "runtime_id")
    search_help_text = "task or runtime id"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[ClaimDecision], search_term: str
    ) -> tuple[QuerySet[ClaimDecision], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        field = self.model._meta.get_field("task_id")
        try:
            ident = field.to_python(term)
        except Exception:
            return queryset.none(), False
        return (queryset.filter(task_id=ident) | queryset.filter(runtime_id=ident)), False

    @admin.display(description="outcome", ordering="outcome")
    def outcome_label(self, row: ClaimDecision) -> str:
        tone = "bad" if row.outcome.startswith("error") else "calm" if row.outcome.startswith("runtime") else "idle"
        return label(row.outcome, tone)

    @admin.display(description="runtime")
    def runtime(self, row: ClaimDecision) -> str:
        return link_to("agentruntime", row.runtime_id, short(row.runtime_id))

    @admin.display(description="task")
    def task(self, row: ClaimDecision) -> str:
        return link_to("agenttask", row.task_id, short(row.task_id)) if row.task_id else EMPTY

    @admin.display(description="lasted")
    def lasted(self, row: ClaimDecision) -> str:
        return between(row.first_at, row.last_at)


@admin.register(LateWrite)
class LateWriteAdmin(ReadOnlyPage):
    list_display = ("created_at", "verb", "code", "status", "task_of", "theirs", "current")
    list_filter = ("verb", "code")
    ordering = ("-id",)
    fields = (("created_at", "verb", "code", "status"), ("task_of", "theirs", "current"), "actor", "payload")

    @admin.display(description="task")
    def task_of(self, row: LateWrite) -> str:
        return link_to("agenttask", row.task_id, short(row.task_id))

    @admin.display(description="its delivery")
    def theirs(self, row: LateWrite) -> str:
        return short(row.claim_token)

    @admin.display(description="the task's delivery")
    def current(self, row: LateWrite) -> str:
        return short(row.current_token)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyPage):
    list_display = ("created_at", "actor", "verb", "object_type", "object_ident", "note")
    list_filter = ("verb", "object_type", WorkspaceFilter)
    ordering = ("-id",)
    search_fields = ("object_id", "actor_id")

    @admin.display(description="object")
    def object_ident(self, row: AuditEntry) -> str:
        return short(row.object_id)
