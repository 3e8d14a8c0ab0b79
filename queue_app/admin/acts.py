"""Operators' verbs on rows they chose: a page that asks for a note, then one service call a row, then three numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from queue_app.admin.base import operator
from queue_app.auth import Caller
from queue_app.errors import QueueError

log = logging.getLogger(__name__)

MOST_ROWS = 500
SAMPLE = 20


class Skipped(Exception):
    """The row was not in a state for this verb; the text says why."""


@dataclass(frozen=True)
class Act:
    """One verb: what the page says, whether a row may be touched, and the service call for one row.

    `apply(caller, row, form data)` raises Skipped when there is nothing to do, QueueError when it is refused.
    """

    name: str
    title: str
    effect: str
    allowed: Callable[[HttpRequest], bool]
    apply: Callable[[Caller, Any, dict[str, Any]], None]
    timed: bool = False


class NoteForm(forms.Form):
    note = forms.CharField(max_length=2000, widget=forms.Textarea(attrs={"rows": 2, "cols": 80}), help_text="why")


class TimedNoteForm(NoteForm):
    minutes = forms.IntegerField(
        min_value=1,
        max_value=60 * 24 * 90,
        required=False,
        help_text="minutes until it ends by itself; empty: never",
    )


def run(model_admin: Any, request: HttpRequest, chosen: QuerySet[Any], act: Act) -> HttpResponse | None:
    """The confirmation page, or, once it was confirmed with a note, the act itself; None goes back to the list."""
    if not act.allowed(request):
        raise PermissionDenied
    rows = list(chosen[: MOST_ROWS + 1])
    if len(rows) > MOST_ROWS:
        model_admin.message_user(request, f"At most {MOST_ROWS} rows at a time: narrow the filter.", messages.ERROR)
        return None
    form_class = TimedNoteForm if act.timed else NoteForm
    form = form_class(request.POST) if "confirmed" in request.POST else form_class()
    if not form.is_bound or not form.is_valid():
        return _confirmation(model_admin, request, rows, act, form)
    _apply(model_admin, request, rows, act, form.cleaned_data)
    return None


def _confirmation(
    model_admin: Any, request: HttpRequest, rows: Sequence[Model], act: Act, form: forms.Form
) -> HttpResponse:
    context = {
        **model_admin.admin_site.each_context(request),
        "title": act.title,
        "act": act,
        "rows": rows,
        "sample": rows[:SAMPLE],
        "rest": max(0, len(rows) - SAMPLE),
        "form": form,
        "opts": model_admin.opts,
        "media": model_admin.media,
        "checkbox_name": ACTION_CHECKBOX_NAME,
    }
    return TemplateResponse(request, "admin/queue_app/act.html", context)


def _apply(model_admin: Any, request: HttpRequest, rows: Sequence[Any], act: Act, data: dict[str, Any]) -> None:
    caller = operator(request, {row.workspace_id for row in rows})
    done, skipped, failed = 0, [], []
    for row in rows:
        try:
            act.apply(caller, row, data)
            done += 1
        except Skipped as reason:
            skipped.append(f"{row}: {reason}")
        except (QueueError, DatabaseError) as error:
            log.warning("%s of %s refused: %s", act.name, row.pk, error)
            failed.append(f"{row}: {error if isinstance(error, QueueError) else 'the database refused it'}")
    level = messages.ERROR if failed else messages.SUCCESS
    text = f"{act.title}: {done} done, {len(skipped)} skipped, {len(failed)} failed."
    model_admin.message_user(request, " ".join([text, *(skipped + failed)[:5]]), level)
