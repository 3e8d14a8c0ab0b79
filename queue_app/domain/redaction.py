"""Keeps secrets out of texts that people will read: comments, errors, events."""

from __future__ import annotations

import re
from typing import Any, Final

MASK: Final = "[redacted]"

_WHOLE: Final = re.compile(
    r"""
    \b(?:mul|mat|mdt|mcn)_[A-Za-z0-9_-]{8,}            # our own tokens
  | \bsk-[A-Za-z0-9_-]{8,}                             # model providers
  | \bgh[pousr]_[A-Za-z0-9]{16,} | \bgithub_pat_[A-Za-z0-9_]{16,} | \bglpat-[A-Za-z0-9_-]{16,}
  | \bxox[abeoprs]-[A-Za-z0-9-]{8,}
  | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
  | \bAIza[A-Za-z0-9_-]{30,}
  | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}
  | -----BEGIN[ A-Z]*PRIVATE[ ]KEY-----[\s\S]*?(?:-----END[ A-Z]*PRIVATE[ ]KEY-----|\Z)
    """,
    re.VERBOSE,
)
_AFTER: Final = re.compile(
    r"""(?i)(\bauthorization["']?\s*[:=]\s*["']?(?:bearer|basic|token)?\s*|\bbearer\s+
        |(?<![a-z])[\w-]*(?:password|passwd|secret|api[_-]?key|access[_-]?key|token)["']?\s*[:=]\s*["']?)
        ([^\s"',;&]{4,})""",
    re.VERBOSE,
)
_URL: Final = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:]*:?[^\s/@]*@")


def redact(text: str) -> str:
    """The text with everything that looks like a credential masked."""
    masked = _URL.sub(rf"\1{MASK}@", text)
    masked = _WHOLE.sub(MASK, masked)
    return _AFTER.sub(rf"\1{MASK}", masked)


def clean(text: str) -> str:
    """The text as PostgreSQL can store it: no NUL, no half of a surrogate pair."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def clean_json(value: object) -> object:
    """A decoded JSON value with every text in it cleaned, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    return value


def clean_fields(record: object) -> dict[str, Any]:
    """The fields of a dataclass with every text in them cleaned."""
    return {name: clean(value) if isinstance(value, str) else value for name, value in vars(record).items()}
