"""The contract between the engine and an agent family: what goes in, what streams out, how a run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
USD_TICKS: Final = 10**10

Json = dict[str, Any]


@dataclass(frozen=True)
class SessionStarted:
    """The CLI told its session id. Sent as soon as it is known, so that a crash later can still resume."""

    session_id: str


@dataclass(frozen=True)
class Text:
    content: str


@dataclass(frozen=True)
class Thinking:
    content: str


@dataclass(frozen=True)
class ToolUse:
    tool: str
    input: Json
    call_id: str = ""


@dataclass(frozen=True)
class ToolResult:
    tool: str
    output: str
    call_id: str = ""


@dataclass(frozen=True)
class AgentError:
    """Something went wrong inside the run; it may still go on."""

    content: str


AgentEvent = SessionStarted | Text | Thinking | ToolUse | ToolResult | AgentError
Emit = Callable[[AgentEvent], None]


@dataclass(frozen=True)
class Usage:
    """Tokens of one model over a whole run. `input_tokens` never includes cached ones. 1 USD = 10^10 ticks."""

    provider: str
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd_ticks: int | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.input_tokens or self.output_tokens or self.cache_read_tokens or self.cache_write_tokens)


@dataclass(frozen=True)
class RunSpec:
    """One run. `executable` is the argv prefix, fixed arguments included; `stop_grace` is real seconds."""

    provider: str
    executable: list[str]
    cwd: Path
    env: Mapping[str, str]
    prompt: str
    model: str = ""
    custom_args: list[str] = field(default_factory=list)
    resume_session_id: str | None = None
    mcp_config: Json | None = None
    tmpdir: Path | None = None
    thinking_level: str = ""
    stop_grace: float = 5.0
    # Values beyond those that the environment shows to be secret; see `redact.Redactor.for_env`.
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    `output` is the deliverable and empty unless completed. `failure_reason` is empty only when completed.
    `session_id` is a session that can really be resumed; `retired_session_id` one that must never be tried again. All
    texts are free of the run's secrets.
    """

    status: Literal["completed", "failed", "cancelled"]
    output: str = ""
    error: str = ""
    failure_reason: str = ""
    session_id: str = ""
    retired_session_id: str = ""
    usage: tuple[Usage, ...] = ()


class Adapter(Protocol):
    """One protocol family. `run` never raises for what an agent does; only a cancelled task passes through."""

    name: str

    async def run(self, spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        """Drive one CLI to its end.

        `emit` is called in the order of the stream and must not block. When `stop` is set the whole process tree is
        ended (SIGTERM, `stop_grace`, SIGKILL), what was produced is drained and the status is `cancelled`. On return no
        process of the run is alive.
        """
