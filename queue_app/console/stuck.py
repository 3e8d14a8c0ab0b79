"""The page of tasks that do not run: which rule holds each, since when, what comes next, and what is in the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from queue_app.services import waiting
from queue_app.services.waiting import WINDOW, Waiting

SHOWN = 200


def page(request: HttpRequest) -> HttpResponse:
    """Every open task that is not running, the oldest first; filters and pages are in the address.

    Parameters: `rule`, `runtime`, `agent`, `after` (where the next window begins). One statement for the rows.
    """
    user: Any = request.user
    if not user.has_perm("queue_app.view_agenttask"):
        raise PermissionDenied
    found = waiting.listing(
        runtime_id=_ident(request, "runtime"), agent_id=_ident(request, "agent"), after=_after(request)
    )
    rule = request.GET.get("rule", "")
    rows = [row for row in found if rule in ("", row.rule.name)]
    context = {
        **admin.site.each_context(request),
        "title": "Tasks that are not running",
        "rows": rows[:SHOWN],
        "hidden": max(0, len(rows) - SHOWN),
        "sums": _sums(request, found),
        "chosen": rule,
        "everything": _address(request, rule=None),
        "following": _following(request, found),
        "window": WINDOW,
    }
    return TemplateResponse(request, "console/stuck.html", context)


def _sums(request: HttpRequest, found: Sequence[Waiting]) -> list[tuple[str, int, str]]:
    counts = Counter(row.rule.name for row in found)
    return [(name, count, _address(request, rule=name)) for name, count in counts.most_common()]


def _following(request: HttpRequest, found: Sequence[Waiting]) -> str:
    """The address of the next window, or nothing when this one holds all."""
    if len(found) < WINDOW:
        return ""
    last = found[-1].row
    return _address(request, after=f"{last['created_at'].isoformat()}~{last['id']}")


def _address(request: HttpRequest, **changes: str | None) -> str:
    params = {name: request.GET[name] for name in ("rule", "runtime", "agent", "after") if request.GET.get(name)}
    params.update({name: value or "" for name, value in changes.items()})
    return "?" + urlencode({name: value for name, value in params.items() if value})


def _ident(request: HttpRequest, name: str) -> UUID | None:
    try:
        return UUID(request.GET.get(name, ""))
    except ValueError:
        return None


def _after(request: HttpRequest) -> tuple[datetime, UUID] | None:
    moment, _, ident = request.GET.get("after", "").partition("~")
    try:
        return datetime.fromisoformat(moment), UUID(ident)
    except ValueError:
        return None
