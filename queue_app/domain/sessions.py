"""Whether a new attempt may go on with an old conversation, and in which directory.

Files and conversation are two decisions: a poisoned conversation is left behind, the code changes in its directory
are not. A conversation goes on only if four things hold: a session is known, its directory is known, the failure before
did not poison it, and the provider can resume.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from queue_app.domain import failure_reasons

_NO_RESUME = frozenset({"plain"})
_EMPTY_MESSAGE = re.compile(r"(?:non-?empty|must not be empty|empty content|cannot be empty)")
_MESSAGE_PLACE = re.compile(r"messages?[.\[]\d+")
_OVERSIZED_IMAGE = (re.compile(r"image"), re.compile(r"exceeds? .{0,40}(?:mb|bytes|pixels|dimension|size)"))


def provider_can_resume(provider: str, protocol_family: str | None = None) -> bool:
    """Whether the agent kind takes a session to go on with. A profile's family decides for runtimes that have one."""
    return (protocol_family or provider) not in _NO_RESUME


def text_poisons(error: str) -> bool:
    """Whether an error text alone shows that the conversation is unusable, whatever reason it was filed under.

    A provider's 400 on the history would be met again by every attempt that resumes it.
    """
    lowered = error.lower()
    if "400" in lowered and "invalid_request_error" in lowered:
        return True
    if "could not resolve authentication method" in lowered:
        return True
    if _EMPTY_MESSAGE.search(lowered) and _MESSAGE_PLACE.search(lowered):
        return True
    return all(part.search(lowered) for part in _OVERSIZED_IMAGE)


def poisoned(failure_reason: str | None, error: str | None) -> bool:
    """Whether the run that ended with this reason and text left a conversation that must not be resumed.

    A run without a reason did not fail, and what it wrote is not an error.
    """
    if failure_reason is None:
        return False
    return not failure_reasons.of(failure_reason).session_reusable or text_poisons(error or "")


@dataclass(frozen=True)
class Resume:
    """What a claim offers: the session to go on with, the directory to work in, and why the session was left out."""

    session_id: str | None
    work_dir: str | None
    because: str


def resume(
    *,
    session_id: str | None,
    work_dir: str | None,
    poison: bool,
    can_resume: bool,
    same_runtime: bool = True,
    force_fresh: bool = False,
    retired: Collection[str] = (),
) -> Resume:
    """Decide for one earlier run. `retired` holds sessions that some run proved unusable.

    The directory is offered whenever it is known; the session only under the four conditions, on the runtime that made
    it, and unless someone asked for a fresh start.
    """
    refusals = (
        (not session_id, "no session was recorded"),
        (not work_dir, "its directory is not known"),
        (poison, "the failure before poisoned the conversation"),
        (not can_resume, "this agent cannot resume"),
        (not same_runtime, "the session lives on another runtime"),
        (force_fresh, "a fresh start was asked for"),
        (session_id in retired, "the session was given up by a later run"),
    )
    because = next((text for holds, text in refusals if holds), "")
    return Resume(None if because else session_id, work_dir or None, because or "resumes the recorded session")
