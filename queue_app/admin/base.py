"""What the model pages share: tables that can only be read, counts that stay cheap, links, ages, who acts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from queue_app import auth
from queue_app.auth import Caller
from queue_app.models import User

MOST_COUNTED = 10_000
EMPTY = "—"


class CheapPaginator(Paginator):  # type: ignore[type-arg]
    """Counts at most 10,000 rows, so that a page of a table of millions costs no full count."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return rows.order_by()[:MOST_COUNTED].count()
        return len(rows)


class Page(admin.ModelAdmin):  # type: ignore[type-arg]
    """Base of every page: no "delete selected", no full counts, only the page's own width of rows."""

    paginator = CheapPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 200
    save_as = False

    class Media:
        css: ClassVar = {"all": ("queue_app/admin.css",)}

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        actions = super().get_actions(request)
        actions.pop("delete_selected", None)
        return actions

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Retention is the only deletion."""
        return False


class ReadOnlyPage(Page):
    """A table that nobody edits by hand."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def may(request: HttpRequest, model: str, verb: str = "change") -> bool:
    """Whether the person has Django's permission `queue_app.<verb>_<model>`."""
    user: Any = request.user
    return bool(user.is_active and user.is_staff and user.has_perm(f"queue_app.{verb}_{model}"))


def operator(request: HttpRequest, workspace_ids: Iterable[UUID]) -> Caller:
    """The person as caller of services. Operators of the admin reach the workspaces of the rows they chose."""
    user = request.user
    assert isinstance(user, User)
    return replace(auth.for_user(user), known_workspaces=frozenset(workspace_ids))


def link(row: Model | None, text: str | None = None) -> SafeString | str:
    """A link to a row's page, its text escaped."""
    if row is None:
        return EMPTY
    return link_to(row._meta.model_name or "", row.pk, text if text is not None else str(row))


def link_to(model: str, ident: object, text: str) -> SafeString:
    """A link to the page of a row of the queue's tables."""
    url = reverse(f"admin:queue_app_{model}_change", args=[ident])
    return format_html('<a href="{}">{}</a>', url, text[:80] or EMPTY)


def short(ident: object) -> str:
    """The last twelve digits of an id, which name a task's directory too."""
    return str(ident)[-12:] if ident else EMPTY


def span(length: timedelta | None) -> str:
    """A length of time for people: `12 s`, `3 m 05 s`, `2 h 10 m`, `4 d 3 h`."""
    if length is None:
        return EMPTY
    seconds = max(0, int(length.total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} m {seconds % 60:02d} s"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} m"
    return f"{seconds // 86400} d {seconds % 86400 // 3600} h"


def between(start: datetime | None, end: datetime | None) -> str:
    """The length of time from start to end, or nothing when either is missing."""
    return span(end - start) if start and end else EMPTY


def label(text: str, tone: str) -> SafeString:
    """A word with a tone: `good`, `bad`, `busy`, `calm`, `idle`. The word says it all, the colour only helps."""
    return format_html('<span class="mc-label mc-{}">{}</span>', tone, text)
