"""Lists of issues and of what was done for them: filters, search, children, runs, usage. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Case, Count, IntegerField, Q, QuerySet, Sum, Value, When

from queue_app.models import AgentTask, Issue, TaskUsage
from queue_app.models.work import ISSUE_PRIORITIES
from queue_app.services.issues import CLOSED, find, visible
from queue_app.services.scope import Scope

_RANK = Case(
    *(When(priority=name, then=Value(rank)) for rank, name in enumerate(reversed(ISSUE_PRIORITIES))),
    default=Value(0),
    output_field=IntegerField(),
)
SORTS: Mapping[str, str] = {
    "created_at": "created_at",
    "updated_at": "updated_at",
    "number": "number",
    "title": "title",
    "status": "status",
    "priority": "rank",
    "position": "position",
    "due_date": "due_date",
}
"""Names accepted by `sort`, and what they order by."""

RUNS_LIMIT = 500


def listing(
    where: Scope,
    *,
    filters: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    sort: str = "created_at",
    direction: str = "desc",
    limit: int = 50,
    offset: int = 0,
) -> tuple[list[Issue], int]:
    """One page of issues and the number of all that match.

    `filters` maps `statuses`, `priorities` (sequences), `assignee_id`, `parent_issue_id` to wanted values; `metadata`
    must be contained in the issue's.
    """
    rows = visible(where)
    if filters.get("statuses"):
        rows = rows.filter(status__in=filters["statuses"])
    if filters.get("priorities"):
        rows = rows.filter(priority__in=filters["priorities"])
    for name in ("assignee_id", "parent_issue_id"):
        if filters.get(name) is not None:
            rows = rows.filter(**{name: filters[name]})
    if metadata:
        rows = rows.filter(metadata__contains=dict(metadata))
    sign = "-" if direction == "desc" else ""
    ordered = rows.annotate(rank=_RANK).order_by(f"{sign}{SORTS[sort]}", f"{sign}id")
    return list(ordered[offset : offset + limit]), rows.count()


def search(where: Scope, text: str, *, limit: int, include_closed: bool) -> list[tuple[Issue, str]]:
    """Issues whose key, title or description holds the text, with where it was found; newest first."""
    wanted = text.strip()
    if not wanted:
        return []
    rows = visible(where)
    if not include_closed:
        rows = rows.exclude(status__in=CLOSED)
    match = Q(title__icontains=wanted) | Q(description__icontains=wanted)
    digits = wanted.rpartition("-")[2]
    if digits.isascii() and digits.isdigit() and len(digits) < 10:
        match |= Q(number=int(digits))
    found = rows.filter(match).order_by("-created_at", "-id")[:limit]
    return [(issue, _source(issue, wanted.casefold())) for issue in found]


def _source(issue: Issue, wanted: str) -> str:
    if wanted in issue.title.casefold():
        return "title"
    return "description" if wanted in issue.description.casefold() else "identifier"


def children(where: Scope, ref: str | UUID) -> list[Issue]:
    """The issues directly below one, by stage, position and number."""
    parent = find(where, ref)
    return list(visible(where).filter(parent_issue=parent).order_by("stage", "position", "number"))


def runs(where: Scope, ref: str | UUID) -> list[AgentTask]:
    """Every attempt made for an issue, newest first, at most 500."""
    return list(_tasks(find(where, ref)).order_by("-created_at", "-id")[:RUNS_LIMIT])


def _tasks(issue: Issue) -> QuerySet[AgentTask]:
    return AgentTask.objects.filter(issue=issue).select_related("agent", "runtime")


_TOTALS: Sequence[str] = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def usage(where: Scope, ref: str | UUID) -> dict[str, int]:
    """Tokens of all attempts for an issue, and the number of attempts that reported any."""
    issue = find(where, ref)
    sums = {f"total_{name}": Sum(name) for name in _TOTALS}
    totals = TaskUsage.objects.filter(task__issue=issue).aggregate(**sums, task_count=Count("task", distinct=True))
    return {name: int(value or 0) for name, value in totals.items()}
