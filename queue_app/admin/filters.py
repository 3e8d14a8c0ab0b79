"""Filters of the task list that cost one small statement each, however many tasks there are."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from queue_app.domain import failure_reasons
from queue_app.domain.states import ACTIVE, OPEN, TERMINAL, WAITING, Status
from queue_app.models import Agent, AgentRuntime, AgentTask, Workspace

MOST_CHOICES = 200
_GROUPS = {"open": OPEN, "waiting": WAITING, "active": ACTIVE, "ended": TERMINAL}


class StatusFilter(admin.SimpleListFilter):
    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, f"[{name}]") for name in _GROUPS] + [(s.value, s.value) for s in Status]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AgentTask]) -> QuerySet[AgentTask]:
        chosen = self.value()
        if not chosen:
            return queryset
        return queryset.filter(status__in=sorted(_GROUPS.get(chosen, {chosen})))


class ReasonFilter(admin.SimpleListFilter):
    title = "failure reason"
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(code, code) for code in sorted(failure_reasons.REASONS)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AgentTask]) -> QuerySet[AgentTask]:
        return queryset.filter(failure_reason=self.value()) if self.value() else queryset


class RowFilter(admin.SimpleListFilter):
    """A choice among the rows of a small table; past 200 the page is filtered by a link from that row instead."""

    model: type[Any]
    order = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows = self.model.objects.order_by(self.order)[:MOST_CHOICES]
        return [(str(row.pk), str(row)) for row in rows]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        if not chosen:
            return queryset
        try:
            ident = UUID(chosen)
        except ValueError:
            return queryset.none()
        return queryset.filter(**{self.field: ident})

    field = ""


class AgentFilter(RowFilter):
    title, parameter_name, model, field = "agent", "agent", Agent, "agent_id"


class RuntimeFilter(RowFilter):
    title, parameter_name, model, field = "runtime", "runtime", AgentRuntime, "runtime_id"


class WorkspaceFilter(RowFilter):
    title, parameter_name, model, field = "workspace", "workspace", Workspace, "workspace_id"
