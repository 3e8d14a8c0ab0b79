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

# Each with what must be in the lower-cased text for it to match at all: most messages hold none of it, and looking for
# a word costs a hundredth of a pattern. Every repetition before the telling part is bounded: an agent may print a
# megabyte without a space, and an open one would look through it again from each of its characters (30 s were seen).
_WHOLE: Final = (
    ("private key", r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"),
    ("mat_", r"\bmat_[A-Za-z0-9]{16,}"),
    ("mul_", r"\bmul_[A-Za-z0-9]{16,}"),
    ("mdt_", r"\bmdt_[A-Za-z0-9]{16,}"),
    ("mcn_", r"\bmcn_[A-Za-z0-9]{16,}"),
    ("sk-", r"\bsk-[A-Za-z0-9_-]{16,}"),
    ("gh", r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
    ("github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{20,}"),
    ("glpat-", r"\bglpat-[A-Za-z0-9_-]{16,}"),
    ("xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("akia", r"\bAKIA[A-Z0-9]{16}\b"),
    ("asia", r"\bASIA[A-Z0-9]{16}\b"),
    ("aiza", r"\bAIza[A-Za-z0-9_-]{30,}"),
    ("k_live_", r"\b[sr]k_live_[A-Za-z0-9]{16,}"),
    ("k_test_", r"\b[sr]k_test_[A-Za-z0-9]{16,}"),
    ("eyj", r"\beyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,}"),
)
_SETTING: Final = r"[A-Z0-9_]{0,64}(?:API_?KEY|SECRET|TOKEN|PASSWORD|PASSWD)[A-Z0-9_]{0,64}"
# In these the first group stays: it tells what was there.
_AFTER: Final = (
    ("authorization", r"(?i)(\bauthorization:\s{0,8}(?:basic|bearer)\s{1,8})[^\s\"']+"),
    ("bearer", r"(?i)(\bbearer\s{1,8})[A-Za-z0-9._~+/-]{16,}=*"),
    ("://", r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://[^\s:/@\"']{0,256}:)[^\s@/\"']{1,1024}(?=@)"),
    *(
        (word, rf"((?:^|(?<=[\s,;\"'{{])){_SETTING}[\"']?\s{{0,8}}[=:]\s{{0,8}}[\"']?)[^\s\"',;}}]{{6,}}")
        for word in ("key", "secret", "token", "passw")
    ),
)
_PATTERNS: Final = (
    *((hint, re.compile(pattern, re.DOTALL), MASK) for hint, pattern in _WHOLE),
    *((hint, re.compile(pattern), rf"\g<1>{MASK}") for hint, pattern in _AFTER),
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
        lowered = value.lower()
        for hint, pattern, shown in _PATTERNS:
            if hint in lowered:
                value = pattern.sub(shown, value)
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
