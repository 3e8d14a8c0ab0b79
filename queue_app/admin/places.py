"""Agents, the runtimes that carry them, runtime profiles and workspaces."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin
from django.db import transaction
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html

from queue_app import events
from queue_app.admin import acts
from queue_app.admin.base import EMPTY, Page, between, label, link, may
from queue_app.admin.filters import WorkspaceFilter
from queue_app.auth import Caller
from queue_app.domain.states import ACTIVE, Status
from queue_app.models import Agent, AgentRuntime, AgentTask, AuditEntry, Member, RuntimeProfile, User, Workspace
from queue_app.services import pause


def _pause(caller: Caller, row: Any, data: dict[str, Any]) -> None:
    minutes = data.get("minutes")
    until = timezone.now() + timedelta(minutes=minutes) if minutes else None
    if not pause.pause(caller, type(row), row.id, until=until, note=data["note"]):
        raise acts.Skipped("it is paused already")


def _resume(caller: Caller, row: Any, data: dict[str, Any]) -> None:
    if not pause.resume(caller, type(row), row.id, note=data["note"]):
        raise acts.Skipped("it is not paused")


def _verbs(model: str) -> tuple[acts.Act, acts.Act]:
    def allowed(request: HttpRequest) -> bool:
        return may(request, model)

    gets_nothing = "Nothing new is given out for them; what runs goes on."
    return (
        acts.Act("pause_rows", "Pause", gets_nothing, allowed, _pause, timed=True),
        acts.Act("resume_rows", "Resume", "They get work again, at once.", allowed, _resume),
    )


def audit(request: HttpRequest, verb: str, row: Any, changed: list[str]) -> None:
    """One entry for a person's edit of a row; names of columns only, never their values."""
    user = request.user
    assert isinstance(user, User)
    AuditEntry.objects.create(
        workspace_id=row.id if isinstance(row, Workspace) else row.workspace_id,
        actor_id=user.id,
        actor=f"user:{user.id}",
        verb=verb,
        object_type=row._meta.model_name,
        object_id=row.id,
        detail={"name": str(row), "changed": sorted(changed)},
    )


class AuditedPage(Page):
    """A page whose edits are audited."""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        audit(request, f"{obj._meta.model_name}.{'update' if change else 'create'}", obj, list(form.changed_data))


class Pausing(AuditedPage):
    """The verbs pause and resume for a table that can be paused."""

    actions = ("pause_rows", "resume_rows")
    verbs: tuple[acts.Act, acts.Act]

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self.verbs[0].allowed(request)

    @admin.action(description="Pause…", permissions=["pause"])
    def pause_rows(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return acts.run(self, request, queryset, self.verbs[0])

    @admin.action(description="Resume…", permissions=["pause"])
    def resume_rows(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return acts.run(self, request, queryset, self.verbs[1])

    @admin.display(description="pause")
    def pause_state(self, row: Any) -> str:
        if row.paused_at is None or (row.paused_until and row.paused_until <= timezone.now()):
            return EMPTY
        until = f"until {row.paused_until:%Y-%m-%d %H:%M}Z" if row.paused_until else "until resumed"
        return format_html("{} {} {}", label("paused", "calm"), until, row.pause_note)


def _active_tasks() -> Count:
    return Count("tasks", filter=Q(tasks__status__in=sorted(ACTIVE)))


@admin.register(AgentRuntime)
class AgentRuntimeAdmin(Pausing):
    verbs = _verbs("agentruntime")
    list_display = (
        "__str__",
        "state",
        "heard",
        "workspace",
        "provider",
        "daemon_id",
        "slots_used",
        "holds",
        "waiting",
        "pause_state",
    )
    list_filter = ("status", "provider", WorkspaceFilter)
    list_select_related = ("workspace",)
    search_fields = ("name", "custom_name", "daemon_id", "device_info")
    ordering = ("name", "id")
    fields = (
        "custom_name",
        ("name", "provider", "profile_link"),
        ("workspace_link", "owner_link", "daemon_id"),
        ("state", "heard", "fresh_since", "incarnation"),
        ("slots_used", "holds", "pause_state"),
        ("device_info", "metadata"),
        ("created_at", "updated_at"),
    )
    readonly_fields = (
        "name",
        "provider",
        "profile_link",
        "workspace_link",
        "owner_link",
        "daemon_id",
        "state",
        "heard",
        "fresh_since",
        "incarnation",
        "slots_used",
        "holds",
        "pause_state",
        "device_info",
        "metadata",
        "created_at",
        "updated_at",
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        waits = AgentTask.objects.filter(runtime_id=OuterRef("pk"), status=Status.QUEUED)
        rows: QuerySet[Any] = super().get_queryset(request)
        annotated: QuerySet[Any] = rows.annotate(active=_active_tasks(), has_waiting=Exists(waits))
        return annotated

    @admin.display(description="state", ordering="status")
    def state(self, row: AgentRuntime) -> str:
        return label(row.status, "good" if row.status == AgentRuntime.Status.ONLINE else "bad")

    @admin.display(description="heard", ordering="last_seen_at")
    def heard(self, row: AgentRuntime) -> str:
        return f"{between(row.last_seen_at, timezone.now())} ago" if row.last_seen_at else "never"

    @admin.display(description="slots")
    def slots_used(self, row: AgentRuntime) -> str:
        slots = row.slots if isinstance(row.slots, dict) else {}
        return ", ".join(f"{name} {value}" for name, value in sorted(slots.items())) or EMPTY

    @admin.display(description="active tasks", ordering="active")
    def holds(self, row: Any) -> int:
        return int(row.active)

    @admin.display(description="work waits", boolean=True)
    def waiting(self, row: Any) -> bool:
        return bool(row.has_waiting)

    @admin.display(description="profile")
    def profile_link(self, row: AgentRuntime) -> str:
        return link(row.profile)

    @admin.display(description="workspace")
    def workspace_link(self, row: AgentRuntime) -> str:
        return link(row.workspace)

    @admin.display(description="owner")
    def owner_link(self, row: AgentRuntime) -> str:
        return link(row.owner)


class AgentForm(forms.ModelForm):  # type: ignore[type-arg]
    """Configuration of an agent. Secrets can be replaced here and are never shown."""

    new_custom_env = forms.JSONField(
        required=False, help_text="An object of names and values that replaces the present one; empty keeps it."
    )
    new_mcp_config = forms.JSONField(required=False, help_text="An object that replaces the present; empty: keep.")

    def clean_new_custom_env(self) -> dict[str, str] | None:
        value = self.cleaned_data["new_custom_env"]
        if value is None:
            return None
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise forms.ValidationError("Give an object whose values are strings.")
        return value

    def clean_custom_args(self) -> list[str]:
        value = self.cleaned_data["custom_args"] or []
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise forms.ValidationError("Give a list of strings.")
        return value

    def clean(self) -> dict[str, Any] | None:
        data = super().clean() or {}
        workspace = data.get("workspace") or getattr(self.instance, "workspace", None)
        runtime = data.get("runtime")
        if runtime is not None and workspace is not None and runtime.workspace_id != workspace.id:
            self.add_error("runtime", "This runtime belongs to another workspace.")
        return data


@admin.register(Agent)
class AgentAdmin(Pausing):
    verbs = _verbs("agent")
    form = AgentForm
    list_display = ("name", "workspace", "status", "runtime", "cap", "waiting", "pause_state", "archived_at")
    list_filter = ("status", WorkspaceFilter)
    list_select_related = ("workspace", "runtime")
    search_fields = ("name",)
    ordering = ("name", "id")
    raw_id_fields = ("owner",)
    readonly_fields = ("status", "kind", "custom_env_names", "pause_state", "created_at", "updated_at")
    fields = (
        ("workspace", "name", "status", "kind"),
        ("runtime", "max_concurrent_tasks", "retry_rate_limits", "owner", "visibility"),
        "instructions",
        ("model", "thinking_level", "service_tier"),
        "custom_args",
        ("custom_env_names", "new_custom_env"),
        "new_mcp_config",
        ("archived_at", "pause_state"),
        ("created_at", "updated_at"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        waits = AgentTask.objects.filter(agent_id=OuterRef("pk"), status=Status.QUEUED)
        rows: QuerySet[Any] = super().get_queryset(request)
        annotated: QuerySet[Any] = rows.annotate(active=_active_tasks(), has_waiting=Exists(waits))
        return annotated

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # An agent's tasks and issues stay in its workspace, so it cannot move.
        return (*self.readonly_fields, "workspace") if obj is not None else self.readonly_fields

    def save_model(self, request: HttpRequest, obj: Agent, form: Any, change: bool) -> None:
        if form.cleaned_data.get("new_custom_env") is not None:
            obj.custom_env = form.cleaned_data["new_custom_env"]
        if form.cleaned_data.get("new_mcp_config") is not None:
            obj.mcp_config = form.cleaned_data["new_mcp_config"]
        super().save_model(request, obj, form, change)
        runtime_ids = [obj.runtime_id] if obj.runtime_id else []
        transaction.on_commit(lambda: events.wake(runtime_ids))

    @admin.display(description="active / cap", ordering="active")
    def cap(self, row: Any) -> str:
        text = f"{row.active} / {row.max_concurrent_tasks}"
        return label(text, "calm") if row.active >= row.max_concurrent_tasks else text

    @admin.display(description="work waits", boolean=True)
    def waiting(self, row: Any) -> bool:
        return bool(row.has_waiting)

    @admin.display(description="custom env")
    def custom_env_names(self, row: Agent) -> str:
        return ", ".join(sorted(row.custom_env or {})) or EMPTY


@admin.register(RuntimeProfile)
class RuntimeProfileAdmin(AuditedPage):
    list_display = ("display_name", "workspace", "protocol_family", "command_name", "enabled")
    list_filter = ("protocol_family", "enabled", WorkspaceFilter)
    list_select_related = ("workspace",)
    search_fields = ("display_name", "command_name")
    readonly_fields = ("created_at", "updated_at")

    def save_model(self, request: HttpRequest, obj: RuntimeProfile, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        tell_daemons(obj.workspace_id, events_frame="daemon:runtime_profiles_changed")


def tell_daemons(workspace_id: Any, *, events_frame: str) -> None:
    """After commit, make the daemons of a workspace's members look again."""
    users = list(Member.objects.filter(workspace_id=workspace_id).values_list("user_id", flat=True))
    payload = {"workspace_id": str(workspace_id)}

    def send() -> None:
        for user_id in users:
            events.hint(events.user_group(user_id), events_frame, payload)

    transaction.on_commit(send)


class MemberInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Member
    extra = 0
    raw_id_fields = ("user",)
    fields = ("user", "role")


@admin.register(Workspace)
class WorkspaceAdmin(AuditedPage):
    list_display = ("name", "slug", "issue_prefix", "issue_counter", "created_at")
    search_fields = ("name", "slug")
    readonly_fields = ("issue_counter", "created_at", "updated_at")
    fields = (
        ("name", "slug", "issue_prefix", "issue_counter"),
        "description",
        "context",
        "repos",
        ("created_at", "updated_at"),
    )
    inlines = (MemberInline,)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "slug") if obj is not None else self.readonly_fields

    def save_model(self, request: HttpRequest, obj: Workspace, form: Any, change: bool) -> None:
        if change:
            # Only what was edited: the counter of issue numbers moves under this form.
            obj.save(update_fields=[*form.changed_data, "updated_at"])
            audit(request, "workspace.update", obj, list(form.changed_data))
        else:
            super().save_model(request, obj, form, change)
            assert isinstance(request.user, User)
            Member.objects.create(workspace=obj, user=request.user, role=Member.Role.OWNER)
        tell_daemons(obj.id, events_frame="daemon:workspaces_changed")
