"""Takes secrets out of what leaves the machine: known values first, then whatever looks like a credential."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from daemon_client.agents.base import (
    AgentError,
    AgentEvent,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)

MASK: Final = "[redacted]"
# Names of the agent's own environment entries, comma separated: all of their values count as secret.
CUSTOM_NAMES_VARIABLE: Final = "MULTICA_CUSTOM_ENV_NAMES"
MAX_DEPTH: Final = 32
# Shorter values are words and numbers; masking each "true" would make every text unreadable.
MIN_SECRET: Final = 6
MIN_CUSTOM: Final = 8

_SECRET_NAME: Final = re.compile(r"(?i)(key|secret|token|passw|credential|auth)")
_NOT_SECRET: Final = re.compile(r"(?i)^(/|\./|true$|false$)")

_PATTERNS: Final = (
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        re.DOTALL,
    ),
    re.compile(r"\b(?:mat|mul|mdt|mcn)_[A-Za-z0-9]{16,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}"),
    re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"),
    re.compile(r"\b[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
)
# In these the first group stays: it tells what was there.
_KEEP_FIRST: Final = (
    re.compile(r"(?i)(\bauthorization:\s*(?:basic|bearer)\s+)[^\s\"']+"),
    re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/-]{16,}=*"),
    re.compile(r"([a-z][a-z0-9+.-]*://[^\s:/@\"']*:)[^\s@/\"']+(?=@)"),
    re.compile(
        r"((?:^|[\s,;\"'{])[A-Z0-9_]*(?:API_?KEY|SECRET|TOKEN|PASSWORD|PASSWD)[A-Z0-9_]*[\"']?\s*[=:]\s*[\"']?)[^\s\"',;}]{6,}"
    ),
)


class Redactor:
    """Masks the given values and everything that has the shape of a credential. Cheap enough for every message."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # Longest first: a secret that contains another one must not leave its rest behind.
        values = sorted(
            {value for value in secrets if len(value) >= MIN_SECRET},
            key=len,
            reverse=True,
        )
        self._known = re.compile("|".join(map(re.escape, values))) if values else None

    @classmethod
    def for_env(cls, env: Mapping[str, str], extra: Iterable[str] = ()) -> Redactor:
        """A redactor that knows the credentials of this environment: entries with a telling name, and custom ones."""
        custom = set(env.get(CUSTOM_NAMES_VARIABLE, "").split(","))
        telling = [value for name, value in env.items() if _SECRET_NAME.search(name) and not _NOT_SECRET.search(value)]
        given = [env[name] for name in custom if len(env.get(name, "")) >= MIN_CUSTOM]
        # A value with several lines is often shown line by line.
        lines = [line for value in (*telling, *given) for line in value.splitlines() if len(line) >= MIN_CUSTOM]
        return cls([*telling, *given, *lines, *extra])

    def text(self, value: str) -> str:
        if self._known is not None:
            value = self._known.sub(MASK, value)
        for pattern in _PATTERNS:
            value = pattern.sub(MASK, value)
        for pattern in _KEEP_FIRST:
            value = pattern.sub(rf"\g<1>{MASK}", value)
        return value

    def value(self, value: Any, depth: int = 0) -> Any:
        """The same for decoded JSON, keys included; what is nested too deeply is dropped."""
        if isinstance(value, str):
            return self.text(value)
        if depth >= MAX_DEPTH and isinstance(value, dict | list):
            return MASK
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, depth + 1) for item in value]
        return value

    def event(self, event: AgentEvent) -> AgentEvent:
        """The event with every text of it cleaned. A session id stays: it is a name and not a credential."""
        match event:
            case Text() | Thinking() | AgentError():
                return replace(event, content=self.text(event.content))
            case ToolUse():
                return replace(event, input=self.value(event.input))
            case ToolResult():
                return replace(event, output=self.text(event.output))
            case _:
                return event
