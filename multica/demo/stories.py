"""What the demo files, and how each of it must end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Run = dict[str, Any]
OPEN = ("queued", "deferred", "dispatched", "waiting_local_directory", "running")
TASK_FAILED = "agent_error.process_failure"
NETWORK = "agent_error.provider_network"


def ended(runs: Sequence[Run]) -> bool:
    return all(run["status"] not in OPEN for run in runs)


def _endings(runs: Sequence[Run]) -> list[tuple[str, str | None]]:
    return [(run["status"], run["failure_reason"]) for run in runs]


def _completed(count: int) -> Callable[[Sequence[Run]], str]:
    def check(runs: Sequence[Run]) -> str:
        if _endings(runs) != [("completed", None)] * count:
            return f"should be {count} completed, is {_endings(runs)}"
        for earlier, later in pairwise(runs):
            if later["started_at"] < earlier["completed_at"]:
                return "the second task began before the first had ended"
        return ""

    return check


def _failed_for_good(runs: Sequence[Run]) -> str:
    if _endings(runs) != [("failed", TASK_FAILED)]:
        return f"should be one failed/{TASK_FAILED} without a retry, is {_endings(runs)}"
    return ""


def _retried(runs: Sequence[Run]) -> str:
    wanted = [("failed", NETWORK), ("completed", None)]
    if _endings(runs) != wanted:
        return f"should be {wanted}, is {_endings(runs)}"
    first, second = runs
    if (second["attempt"], second["retry_of_task_id"]) != (2, first["id"]):
        return "the second attempt is not the first one's retry"
    return ""


def _cancelled(runs: Sequence[Run]) -> str:
    # A daemon may add why it stopped; that is no failure.
    if [run["status"] for run in runs] != ["cancelled"]:
        return f"should be one cancelled, is {_endings(runs)}"
    return "" if runs[0]["stopped_at"] else "the daemon never said that the process is gone"


@dataclass
class Story:
    """One issue of the demo. `tasks` is how many attempts it must have; `check` says what is wrong, or nothing."""

    title: str
    description: str
    agent: str
    check: Callable[[Sequence[Run]], str]
    tasks: int = 1
    say_meanwhile: str = ""
    cancel_meanwhile: bool = False
    commits: int = 0
    issue: dict[str, Any] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    acted: bool = False

    @property
    def key(self) -> str:
        return str(self.issue.get("identifier", "?"))

    @property
    def settled(self) -> bool:
        """Whether nothing more can happen to it: all attempts have ended, and one that is missing never comes."""
        if not self.runs or not ended(self.runs) or (self.cancel_meanwhile and not self.runs[0]["stopped_at"]):
            return False
        return len(self.runs) >= self.tasks or bool(self.runs[-1]["not_retried_because"])


def stories() -> list[Story]:
    """A fresh set for one run."""
    return [
        Story("Add slugify() to textkit", "Addresses need it. With a test.", "Ada", _completed(1), commits=1),
        Story(
            "An empty text counts as one word",
            "word_count('') should be 0. With a test.",
            "Grace",
            _completed(2),
            tasks=2,
            say_meanwhile="Please say so in CHANGES.md too.",
            commits=2,
        ),
        Story("Add initials() to textkit", "For avatars. With a test.", "Ada", _completed(1), commits=1),
        Story("Remove word_count() from textkit", "Nobody needs it, I think.", "Grace", _failed_for_good),
        Story(
            "Write down what is new",
            "Ask the model provider how, then do it.",
            "Ada",
            _retried,
            tasks=2,
            commits=1,
        ),
        Story("Think about a rewrite", "Take your time.", "Grace", _cancelled, cancel_meanwhile=True),
    ]
