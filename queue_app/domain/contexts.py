"""What a task's `context` may hold, by kind: the part of the snapshot that no column has.

It is written once, when the task is made. The claim answer and the effects read it, so a wrong shape is refused before
there is a row instead of being met by a daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final
from uuid import UUID

from queue_app.domain.states import Kind

SOURCES: Final = ("manual", "schedule", "webhook", "api")
PRIORITY_NAMES: Final = ("urgent", "high", "medium", "low", "none")

Rule = Callable[[Any], str | None]
"""Says what is wrong with a value, as the end of a sentence; None: nothing."""


@dataclass(frozen=True)
class Field:
    """One key of a context."""

    rule: Rule
    required: bool = False


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be text"


def _words(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() else "must be text that is not empty"


def _uuid(value: Any) -> str | None:
    try:
        UUID(value)
    except (ValueError, AttributeError, TypeError):
        return "must be a UUID"
    return None


def _uuids(value: Any) -> str | None:
    if isinstance(value, list) and all(_uuid(one) is None for one in value):
        return None
    return "must be a list of UUIDs"


def _date(value: Any) -> str | None:
    try:
        date.fromisoformat(value)
    except (ValueError, TypeError):
        return "must be a date, YYYY-MM-DD"
    return None


def _one_of(*names: str) -> Rule:
    return lambda value: None if value in names else f"must be one of {', '.join(names)}"


def _anything(value: Any) -> str | None:
    return None


_AUTOPILOT: Final = {
    "title": Field(_text),
    "description": Field(_text),
    "source": Field(_one_of(*SOURCES)),
    "trigger_payload": Field(_anything),
}
_ISSUE: Final = {
    "autopilot_id": Field(_uuid),
    "autopilot_run_id": Field(_uuid),
    "head_sha": Field(_words),
    **_AUTOPILOT,
}
_QUICK_CREATE: Final = {
    "prompt": Field(_words, required=True),
    "requester_id": Field(_uuid, required=True),
    "priority": Field(_one_of(*PRIORITY_NAMES)),
    "due_date": Field(_date),
    "project_id": Field(_uuid),
    "squad_id": Field(_uuid),
    "parent_issue_id": Field(_uuid),
    "attachment_ids": Field(_uuids),
}
SCHEMAS: Final[Mapping[str, Mapping[str, Field]]] = {
    Kind.ISSUE: _ISSUE,
    Kind.COMMENT: {"head_sha": Field(_words)},
    Kind.QUICK_CREATE: _QUICK_CREATE,
    Kind.AUTOPILOT: {**_AUTOPILOT, "source": Field(_one_of(*SOURCES), required=True)},
}
"""The keys of each kind. A chat's input is its messages: it has none of its own and is not narrowed here."""


def problem(kind: str, context: Any) -> tuple[str, str] | None:
    """The first thing wrong with the context of a task of this kind, as (key, sentence); None: it fits."""
    if not isinstance(context, Mapping):
        return "context", "context must be an object"
    schema = SCHEMAS.get(kind)
    if schema is None:
        return None
    for key in context:
        if key not in schema:
            return key, f"context.{key}: a task of kind {kind} has no such key"
    for key, field in schema.items():
        wrong = field.rule(context[key]) if key in context else "is missing" if field.required else None
        if wrong is not None:
            return key, f"context.{key} {wrong}"
    return None


def autopilot_run(context: Mapping[str, Any] | None) -> str | None:
    """The autopilot run that an issue task was made by, if one was."""
    run = (context or {}).get("autopilot_run_id")
    return run if isinstance(run, str) and run else None
