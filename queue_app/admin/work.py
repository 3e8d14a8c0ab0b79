"""Issues and comments, to look at: they are written by people and agents through the issue API."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from queue_app.admin.base import EMPTY, ReadOnlyPage, link, link_to
from queue_app.admin.filters import WorkspaceFilter
from queue_app.models import Comment, ConnectedApp, InboxItem, Issue, Squad, SquadMember
from queue_app.models.work import ISSUE_PRIORITIES, ISSUE_STATUSES

_MODEL_OF = {"agent": "agent", "member": "user", "squad": "squad"}


def person(kind: str, ident: object) -> str:
    """A link to the agent or person behind an id."""
    if not ident:
        return kind or EMPTY
    model = _MODEL_OF.get(kind)
    return link_to(model, ident, kind) if model else kind


class WordFilter(admin.SimpleListFilter):
    words: tuple[str, ...] = ()

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [(word, word) for word in self.words]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Issue]) -> QuerySet[Issue]:
        return queryset.filter(**{str(self.parameter_name): self.value()}) if self.value() else queryset


class IssueStatusFilter(WordFilter):
    title = parameter_name = "status"
    words = ISSUE_STATUSES


class IssuePriorityFilter(WordFilter):
    title = parameter_name = "priority"
    words = ISSUE_PRIORITIES


@admin.register(Issue)
class IssueAdmin(ReadOnlyPage):
    list_display = ("key", "title", "status", "priority", "assignee", "workspace", "created_at")
    list_display_links = ("key", "title")
    list_filter = (IssueStatusFilter, IssuePriorityFilter, WorkspaceFilter)
    list_select_related = ("workspace",)
    search_fields = ("title",)
    ordering = ("-id",)
    fields = (
        ("key", "workspace", "status", "priority"),
        "title",
        "description",
        ("assignee", "creator", "parent", "tasks"),
        ("stage", "start_date", "due_date"),
        "metadata",
        ("created_at", "updated_at", "first_executed_at"),
    )

    @admin.display(description="key")
    def key(self, issue: Issue) -> str:
        return issue.identifier

    @admin.display(description="assignee")
    def assignee(self, issue: Issue) -> str:
        return person(issue.assignee_type, issue.assignee_id)

    @admin.display(description="creator")
    def creator(self, issue: Issue) -> str:
        return person(issue.creator_type, issue.creator_id)

    @admin.display(description="parent")
    def parent(self, issue: Issue) -> str:
        return link(issue.parent_issue)

    @admin.display(description="tasks")
    def tasks(self, issue: Issue) -> str:
        url = reverse("admin:queue_app_agenttask_changelist")
        return format_html('<a href="{}?issue__id__exact={}">tasks of this issue</a>', url, issue.pk)


@admin.register(Comment)
class CommentAdmin(ReadOnlyPage):
    list_display = ("created_at", "issue_link", "author", "type", "beginning", "resolved_at")
    list_filter = ("author_type", "type", WorkspaceFilter)
    list_select_related = ("issue__workspace",)
    ordering = ("-id",)
    fields = (("issue_link", "author", "type"), "content", "task", ("created_at", "updated_at", "resolved_at"))

    @admin.display(description="issue")
    def issue_link(self, comment: Comment) -> str:
        return link(comment.issue, comment.issue.identifier)

    @admin.display(description="author")
    def author(self, comment: Comment) -> str:
        return person(comment.author_type, comment.author_id)

    @admin.display(description="text")
    def beginning(self, comment: Comment) -> str:
        return comment.content[:120]

    @admin.display(description="written by task")
    def task(self, comment: Comment) -> str:
        ident = comment.source_task_id
        return link_to("agenttask", ident, str(ident)) if ident else EMPTY


class SquadMemberInline(admin.TabularInline):  # type: ignore[type-arg]
    model = SquadMember
    fields = ("member_type", "member_id")
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Squad)
class SquadAdmin(ReadOnlyPage):
    list_display = ("name", "leader", "workspace", "archived_at", "created_at")
    list_filter = (WorkspaceFilter,)
    list_select_related = ("leader", "workspace")
    search_fields = ("name",)
    ordering = ("name",)
    fields = (("name", "workspace"), "leader", "instructions", ("created_at", "updated_at", "archived_at"))
    inlines = (SquadMemberInline,)


@admin.register(InboxItem)
class InboxItemAdmin(ReadOnlyPage):
    list_display = ("created_at", "user", "type", "title", "workspace", "read_at")
    list_filter = ("type", WorkspaceFilter)
    list_select_related = ("user", "workspace")
    ordering = ("-id",)
    fields = (("user", "workspace", "type"), "title", "body", ("issue", "task_id"), ("created_at", "read_at"))


@admin.register(ConnectedApp)
class ConnectedAppAdmin(ReadOnlyPage):
    """Without the server's entry: it may hold secrets."""

    list_display = ("server_name", "provider", "toolkit_name", "workspace", "created_at")
    list_filter = (WorkspaceFilter,)
    list_select_related = ("workspace",)
    ordering = ("server_name",)
    fields = (("server_name", "provider", "workspace"), ("toolkit_slug", "toolkit_name"), "created_at")
