"""Tasks: looked at in every detail, moved only by the verbs cancel and rerun, which go through the services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.safestring import SafeString

from queue_app.admin import acts
from queue_app.admin.base import EMPTY, ReadOnlyPage, between, label, link, may, short
from queue_app.admin.filters import AgentFilter, ReasonFilter, RuntimeFilter, StatusFilter, WorkspaceFilter
from queue_app.admin.task_detail import detail_of
from queue_app.auth import Caller
from queue_app.console import stuck
from queue_app.domain import failure_reasons
from queue_app.domain.states import OPEN, WAITING, Status
from queue_app.models import AgentTask
from queue_app.services import cancel, rerun

LABELS = {
    Status.QUEUED: ("waiting", "calm"),
    Status.DEFERRED: ("deferred", "calm"),
    Status.DISPATCHED: ("preparing", "busy"),
    Status.WAITING_LOCAL_DIRECTORY: ("waiting for a directory", "busy"),
    Status.RUNNING: ("running", "busy"),
    Status.COMPLETED: ("completed", "good"),
    Status.FAILED: ("failed", "bad"),
    Status.CANCELLED: ("cancelled", "idle"),
}
DEAD = ("running, machine not heard", "bad")


def _cancel(caller: Caller, task: AgentTask, data: dict[str, Any]) -> None:
    if task.status not in OPEN:
        raise acts.Skipped(f"it is {task.status} already")
    if cancel.cancel_task(caller, task.id, note=data["note"]).status != Status.CANCELLED:
        raise acts.Skipped("it ended meanwhile")


def _rerun(caller: Caller, task: AgentTask, data: dict[str, Any]) -> None:
    if task.status in WAITING:
        raise acts.Skipped("it has not run yet")
    rerun.rerun(caller, task.id, note=data["note"])


def _may_act(request: HttpRequest) -> bool:
    return may(request, "agenttask")


CANCEL = acts.Act(
    "cancel_tasks",
    "Cancel tasks",
    "Each ends as cancelled at once; a run that is under way is told to stop, with everything it started.",
    _may_act,
    _cancel,
)
RERUN = acts.Act(
    "rerun_tasks",
    "Run tasks again",
    "Each gets a new task for the same work, with a new conversation, in place of what waits for its issue and agent.",
    _may_act,
    _rerun,
)


def state_label(task: AgentTask) -> SafeString:
    """Waiting, preparing, a healthy run and a run of a machine that is gone look different."""
    if task.status == Status.RUNNING and task.runtime is not None and task.runtime.status != "online":
        return label(*DEAD)
    return label(*LABELS[Status(task.status)])


@admin.register(AgentTask)
class AgentTaskAdmin(ReadOnlyPage):
    list_display = (
        "ident",
        "state",
        "kind",
        "agent_link",
        "issue_link",
        "runtime_link",
        "priority",
        "attempts",
        "waited",
        "ran",
        "reason",
        "created_at",
    )
    list_display_links = ("ident",)
    list_filter = (StatusFilter, "kind", ReasonFilter, AgentFilter, RuntimeFilter, WorkspaceFilter)
    list_select_related = ("agent", "issue__workspace", "runtime")
    # The key is a UUIDv7, so this is the order of creation, and the index is there.
    ordering = ("-id",)
    search_fields = ("id",)
    search_help_text = "task id or its last 12 digits, issue key such as MUL-12, session id"
    actions = ("cancel_tasks", "rerun_tasks")
    change_form_template = "admin/queue_app/agenttask/change_form.html"
    fieldsets: ClassVar = [
        (None, {"fields": ("id", "state", "kind", "agent_link", "issue_link", "runtime_link", "reason", "error")}),
        (
            "Times",
            {"fields": (("created_at", "fire_at"), ("dispatched_at", "started_at", "completed_at"), ("waited", "ran"))},
        ),
        (
            "Delivery",
            {
                "fields": (
                    ("attempts", "deliveries", "lease_extensions", "prepare_lease_expires_at"),
                    ("delivery", "stop_pending_since", "stopped_at", "wait_reason"),
                )
            },
        ),
        (
            "Why and for whom",
            {
                "fields": (
                    ("priority", "base_priority", "serial_key"),
                    ("trigger_summary", "trigger_evidence_kind", "handoff_note"),
                    ("originator_user_id", "accountable_user_id", "originator_source"),
                    "not_retried_because",
                )
            },
        ),
        ("Result", {"fields": ("result", "branch_name", "session_id", "work_dir", "durable_work_dir")}),
    ]

    def get_urls(self) -> list[URLPattern]:
        own = [path("stuck/", self.admin_site.admin_view(stuck.page), name="queue_app_stuck")]
        return [*own, *super().get_urls()]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AgentTask], search_term: str
    ) -> tuple[QuerySet[AgentTask], bool]:
        term = search_term.strip().replace("\x00", "")
        return (queryset.filter(_match(term)), False) if term else (queryset, False)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {**(extra_context or {}), **detail_of(object_id), "may_act": _may_act(request)}
        return super().change_view(request, object_id, form_url, context)

    @admin.action(description="Cancel…", permissions=["act"])
    def cancel_tasks(self, request: HttpRequest, queryset: QuerySet[AgentTask]) -> HttpResponse | None:
        return acts.run(self, request, queryset.select_related("workspace"), CANCEL)

    @admin.action(description="Run again…", permissions=["act"])
    def rerun_tasks(self, request: HttpRequest, queryset: QuerySet[AgentTask]) -> HttpResponse | None:
        return acts.run(self, request, queryset.select_related("workspace"), RERUN)

    def has_act_permission(self, request: HttpRequest) -> bool:
        return _may_act(request)

    @admin.display(description="task")
    def ident(self, task: AgentTask) -> str:
        return short(task.id)

    @admin.display(description="state", ordering="status")
    def state(self, task: AgentTask) -> SafeString:
        return state_label(task)

    @admin.display(description="agent")
    def agent_link(self, task: AgentTask) -> str:
        return link(task.agent)

    @admin.display(description="issue")
    def issue_link(self, task: AgentTask) -> str:
        return link(task.issue, f"{task.issue.identifier} {task.issue.title}" if task.issue else None)

    @admin.display(description="runtime")
    def runtime_link(self, task: AgentTask) -> str:
        return link(task.runtime)

    @admin.display(description="attempt")
    def attempts(self, task: AgentTask) -> str:
        return f"{task.attempt} of {task.max_attempts}"

    @admin.display(description="waited")
    def waited(self, task: AgentTask) -> str:
        return between(task.created_at, task.started_at or task.completed_at or timezone.now())

    @admin.display(description="ran")
    def ran(self, task: AgentTask) -> str:
        return between(task.started_at, task.completed_at or timezone.now())

    @admin.display(description="reason")
    def reason(self, task: AgentTask) -> str:
        return str(label(failure_reasons.of(task.failure_reason).label, "bad")) if task.failure_reason else EMPTY

    @admin.display(description="this delivery")
    def delivery(self, task: AgentTask) -> str:
        return short(task.claim_token)


def _match(term: str) -> Q:
    """Exact matches only, each served by an index or bounded by its issue: no scan of millions of rows for a word."""
    prefix, _, number = term.rpartition("-")
    if prefix.isalnum() and number.isascii() and number.isdigit() and len(number) < 10:
        return Q(issue__workspace__issue_prefix__iexact=prefix, issue__number=int(number))
    try:
        return Q(id=UUID(term))
    except ValueError:
        pass
    if len(term) == 12 and _is_hex(term):
        return Q(id__in=_by_tail(term))
    return Q(session_id=term)


def _is_hex(text: str) -> bool:
    return all(char in "0123456789abcdef" for char in text.lower())


def _by_tail(tail: str) -> Sequence[UUID]:
    # Only the newest rows are looked at: the tail has no index, and what people paste is of today.
    newest = AgentTask.objects.order_by("-id").values_list("id", flat=True)[:20_000]
    return [ident for ident in newest if str(ident).endswith(tail.lower())]
