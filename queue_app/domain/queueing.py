"""What an enqueue derives from the work itself: its priority and the key under which it runs alone."""

from __future__ import annotations

import re
from typing import Any, Final

from queue_app.domain.states import Kind

PRIORITIES: Final[dict[str, int]] = {"urgent": 4, "high": 3, "medium": 2, "low": 1, "none": 0}
QUICK_CREATE_PRIORITY: Final = 3
CHAT_PRIORITY: Final = 2
CHAT_RETRY_PRIORITY: Final = 3


def priority_of(name: str) -> int:
    """The queue's priority, 0 to 4, of an issue's priority name."""
    return PRIORITIES.get(name, 0)


def serial_key(kind: str, *, issue_id: Any = None, chat_session_id: Any = None, autopilot_id: Any = None) -> str | None:
    """The key under which one agent runs one task at a time; None leaves a task unconstrained."""
    if kind == Kind.CHAT and chat_session_id:
        return f"chat:{chat_session_id}"
    if kind == Kind.AUTOPILOT and autopilot_id:
        return f"autopilot:{autopilot_id}"
    if issue_id:
        return f"issue:{issue_id}"
    return "quick-create" if kind == Kind.QUICK_CREATE else None


def summary(text: str, limit: int = 200) -> str:
    """One line of at most `limit` characters for lists."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def mentions(text: str, name: str) -> int | None:
    """Where a text addresses `@name`, in any case and not as the beginning of a longer word; None: nowhere."""
    found = re.search(rf"(?<![\w@])@{re.escape(name)}(?![\w-])", text, re.IGNORECASE)
    return found.start() if found else None
