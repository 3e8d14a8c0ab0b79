"""A piece of a run's transcript arrives."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from queue_app import events
from queue_app.auth import Caller
from queue_app.services import fenced_reports
from queue_app.sql.reports import APPEND_MESSAGES
from queue_app.wire.daemon import Message

FIELD_LIMIT = 512 * 1024
EVENT_LIMIT = 64 * 1024
"""Characters kept of one field of a message, and characters of messages that an event carries along."""


def append_messages(caller: Caller, task_id: UUID | None, *, claim_token: UUID | None, messages: list[Message]) -> int:
    """Store messages of a task in any state and tell the clients; returns how many were new.

    A repeat of a (task, seq) is ignored, the first one stands. Raises StaleClaimError, TaskNotFoundError,
    NotFoundError.
    """
    rows = [_row(message) for message in messages]
    late = {"messages": len(rows), "seqs": [row["seq"] for row in rows[:100]]}
    body = msgspec.json.encode(rows).decode()
    written = fenced_reports.write(APPEND_MESSAGES, "messages", caller, task_id, claim_token, {"messages": body}, late)
    new = set(written.made or ())
    if new:
        payload = {**written.payload, **_told([row for row in rows if row["seq"] in new])}
        events.publish(written.workspace_id, "task:message", payload)
    return len(new)


def _row(message: Message) -> dict[str, Any]:
    return {
        "seq": message.seq,
        "type": message.type[:16] or "log",
        "tool": _bounded(message.tool),
        "content": _bounded(message.content),
        "input": message.input,
        "output": _bounded(message.output),
    }


def _bounded(text: str) -> str:
    return text if len(text) <= FIELD_LIMIT else f"{text[:FIELD_LIMIT]}\n[cut at {FIELD_LIMIT} characters]"


def _told(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The messages themselves while they are small; else only which, since history is read from the table."""
    seqs = [row["seq"] for row in rows]
    told: dict[str, Any] = {"first_seq": min(seqs), "last_seq": max(seqs)}
    if len(msgspec.json.encode(rows)) <= EVENT_LIMIT:
        told["messages"] = rows
    return told
