"""Formatting for the operators' pages: escaped, bounded, no query and no rule."""

from __future__ import annotations

import json
from typing import Any

from django import template
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from queue_app.domain.redaction import redact

register = template.Library()
PIECE = 4_000
_MODEL_OF = {"task": "agenttask", "agent": "agent", "runtime": "agentruntime"}
_HIDDEN = frozenset({"claim_token"})


@register.filter
def short(ident: Any) -> str:
    """The last twelve digits of an id."""
    return str(ident)[-12:] if ident else ""


@register.filter
def piece(value: Any) -> str:
    """What an agent or daemon sent, as text without secrets, at most 4,000 characters; the template escapes it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)
    text = redact(text)
    return text if len(text) <= PIECE else f"{text[:PIECE]}… ({len(text) - PIECE} more characters)"


@register.filter
def changes(value: dict[str, Any]) -> str:
    """The columns that an event changed, one a line, without those that its own columns show."""
    return piece("\n".join(f"{name}: {new}" for name, new in value.items() if name not in _HIDDEN and name != "status"))


@register.filter
def task_link(task: Any) -> SafeString:
    """A link to a task."""
    return format_html(
        '<a href="{}">{}</a>', reverse("admin:queue_app_agenttask_change", args=[task.pk]), short(task.pk)
    )


@register.filter
def blocker_link(blocker: Any) -> SafeString:
    """A link to the object that is in the way."""
    url = reverse(f"admin:queue_app_{_MODEL_OF[blocker.kind]}_change", args=[blocker.id])
    return format_html('<a href="{}">{} {}</a>', url, blocker.kind, blocker.label[:80])
