"""The transcript on its way to the server: events become numbered messages, sent in batches twice a second.

Events come from the adapters with their secrets taken out already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from daemon_client import protocol
from daemon_client.agents.base import AgentError, AgentEvent, Text, Thinking, ToolResult, ToolUse
from daemon_client.clock import Clock
from daemon_client.errors import HttpError, is_transient
from daemon_client.protocol import ClaimedTask, Json
from daemon_client.transport.http import ServerApi

log = logging.getLogger(__name__)

# What is kept while the server cannot be reached; beyond it the oldest go first.
MAX_WAITING: Final = 5000
BATCH: Final = 500
BATCH_BYTES: Final = 1 << 20


def first_batch(messages: list[Json]) -> list[Json]:
    """As many messages from the front as one request should carry; at least one."""
    size = count = 0
    for message in messages[:BATCH]:
        size += len(message.get("content") or message.get("output") or "") + 200
        if count and size > BATCH_BYTES:
            break
        count += 1
    return messages[:count]


class MessageStream:
    """Collects the events of one run. Numbers start at 1 and never repeat, so the server can drop what it has twice."""

    def __init__(
        self, task: ClaimedTask, api: ServerApi, clock: Clock, on_superseded: Callable[[str], None] = lambda _: None
    ) -> None:
        self._task, self._api, self._clock, self._on_superseded = task, api, clock, on_superseded
        self._waiting: list[Json] = []
        self._text: list[str] = []
        self._text_kind = "text"
        self._tools: dict[str, str] = {}
        self._seq = 0
        self.over = False

    def add(self, event: AgentEvent) -> None:
        """Take one event. Adjacent pieces of text become one message; order is that of arrival."""
        match event:
            case Text(content):
                self._add_text("text", content)
            case Thinking(content):
                self._add_text("thinking", content)
            case ToolUse(tool, arguments, call_id):
                if call_id:
                    self._tools[call_id] = tool
                self._add(type="tool_use", tool=tool, input=arguments if isinstance(arguments, dict) else None)
            case ToolResult(tool, output, call_id):
                name = tool or self._tools.get(call_id or "", "")
                self._add(type="tool_result", tool=name, output=cut(output, protocol.TOOL_OUTPUT_LIMIT))
            case AgentError(content):
                self._add(type="error", content=content)

    def _add_text(self, kind: str, content: str) -> None:
        if kind != self._text_kind:
            self._end_text()
            self._text_kind = kind
        self._text.append(content)

    def _end_text(self) -> None:
        content, self._text = "".join(self._text), []
        if content:
            self._append({"type": self._text_kind, "content": content})

    def _add(self, **fields: Any) -> None:
        self._end_text()
        self._append({name: value for name, value in fields.items() if value})

    def _append(self, message: Json) -> None:
        self._seq += 1
        self._waiting.append({"seq": self._seq} | message)
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[: len(self._waiting) - MAX_WAITING]

    async def flush(self) -> None:
        """Send what has gathered. A batch that may not have arrived is sent again next time; errors never propagate."""
        self._end_text()
        while self._waiting and not self.over:
            batch = first_batch(self._waiting)
            try:
                await self._api.messages(self._task, batch)
            except Exception as error:
                if is_transient(error):
                    log.debug("transcript of task %s waits: %s", self._task.id, error)
                    return
                log.warning("transcript of task %s was refused: %s", self._task.id, error)
                if isinstance(error, HttpError) and error.claim_is_over:
                    self.over = True
                    self._on_superseded(str(error))
            last = batch[-1]["seq"]
            self._waiting = [message for message in self._waiting if message["seq"] > last]

    def rest(self) -> list[Json]:
        """What has not reached the server; it goes with the ending."""
        self._end_text()
        return [] if self.over else list(self._waiting)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(protocol.MESSAGE_FLUSH_INTERVAL)
            await self.flush()


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8, never half a character."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore")
