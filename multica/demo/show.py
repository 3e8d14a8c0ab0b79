"""What the demo says in the terminal: live lines while it runs, a table when it is over."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from multica.demo.stories import Story

WIDTH = 96


class Stream(Protocol):
    """Where lines go: a file, or the output of a management command."""

    def write(self, text: str, /) -> Any: ...
    def flush(self) -> None: ...


class Screen:
    """One line at a time, with the seconds since the beginning."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.begun = stream, time.monotonic()

    def line(self, text: str = "") -> None:
        """A line as it is; control characters of agents are not passed on to the terminal."""
        clean = "".join(char if char.isprintable() else " " for char in text)
        self.stream.write(f"{clean}\n")
        self.stream.flush()

    def live(self, key: str, what: str, text: str) -> None:
        """Something that happened to an issue or a process."""
        room = WIDTH - 32
        shown = text if len(text) <= room else f"{text[: room - 1]}…"
        self.line(f"{time.monotonic() - self.begun:6.1f} s  {key:<8} {what:<11} {shown}")


def seconds(start: str | None, end: str | None) -> str:
    """The length of a run in seconds, from RFC 3339 times."""
    if not start or not end:
        return "-"
    return f"{(datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds():.1f} s"


def table(stories: Sequence[Story]) -> list[str]:
    """What ran: task, issue, attempt, status, reason, duration."""
    rows = [("task", "issue", "agent", "attempt", "status", "reason", "duration")]
    for story in stories:
        for run in story.runs:
            rows.append(
                (
                    run["id"][-12:],
                    story.key,
                    run["agent_name"],
                    f"{run['attempt']} of {run['max_attempts']}",
                    run["status"],
                    run["failure_reason"] or "",
                    seconds(run["started_at"], run["completed_at"]),
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


# Where each agent CLI keeps a login, below the home of its user, and the variable that replaces it.
_LOGINS = {
    "claude": ((".claude/.credentials.json",), ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")),
    "codex": ((".codex/auth.json",), ("OPENAI_API_KEY",)),
}


def installed_agents(home: Path) -> list[str]:
    """The agent CLIs that are installed and logged in on this machine, for this user."""
    found = []
    for name, (files, variables) in _LOGINS.items():
        logged_in = any((home / file).is_file() for file in files) or any(os.environ.get(each) for each in variables)
        if shutil.which(name) and logged_in:
            found.append(name)
    return found


def how_to_use(names: Sequence[str], url: str) -> list[str]:
    """How to let an installed agent CLI work here."""
    if not names:
        return []
    return [
        f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} installed and logged in here. To let it work:",
        f"  1. make a token in {url}/admin/ (Personal access tokens, Add)",
        f"  2. multica login --server-url {url} --token -    (paste it)",
        "  3. multica daemon start",
        "  4. give an agent its runtime in the admin (Agents), and assign an issue to that agent",
    ]


def account_lines(url: str, account: dict[str, Any]) -> list[str]:
    """Where the admin is, with the login."""
    return [
        f"admin:     {url}/admin/   login: {account['username']}   password: {account['password']}",
        f"waiting:   {url}/admin/queue_app/agenttask/stuck/",
        f"API:       {url}/api/schema/",
    ]
