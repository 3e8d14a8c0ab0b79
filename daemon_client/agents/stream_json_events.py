"""Reads the events of Claude's stream: what to show, which session, how much it used, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from daemon_client.agents import base
from daemon_client.agents.stream_json_usage import add, from_model_usage, from_usage, of_this_run


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> base.Json:
    return value if isinstance(value, dict) else {}


class StreamState:
    """Everything that a stream has said so far. Unknown events and odd shapes are ignored, never an error."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self.session_id = ""
        self.has_result = self.is_error = self.prompt_too_long = self.left_in_background = False
        self.error_text = ""
        self._result_text = self._last_text = ""
        self._model = ""
        self._per_message: dict[str, tuple[str, base.Json]] = {}
        self._final_usage: base.Json | None = None
        self.model_usage: base.Json = {}
        self._tools: dict[str, str] = {}

    @property
    def succeeded(self) -> bool:
        return self.has_result and not self.is_error and not self.prompt_too_long

    @property
    def output(self) -> str:
        """The deliverable: the result's text, else the last text of a turn that used no tool."""
        return self._result_text or self._last_text

    def accept(self, event: base.Json) -> Iterator[base.AgentEvent]:
        """Take one event of the stream; yields what is to be shown for it."""
        match event.get("type"):
            case "system":
                yield from self._system(event)
            case "assistant":
                yield from self._assistant(_dict(event.get("message")))
            case "user":
                yield from self._user(_dict(event.get("message")))
            case "result":
                self._result(event)

    def _system(self, event: base.Json) -> Iterator[base.AgentEvent]:
        session = _text(event.get("session_id"))
        self._model = _text(event.get("model")) or self._model
        if session and session != self.session_id:
            self.session_id = session
            yield base.SessionStarted(session)
        if event.get("subtype") == "api_retry":
            cause = " ".join(str(event[key]) for key in ("error_status", "error") if event.get(key) is not None)
            yield base.AgentError(
                f"the model service did not answer ({cause}); try {event.get('attempt')} of {event.get('max_retries')}"
            )

    def _assistant(self, message: base.Json) -> Iterator[base.AgentEvent]:
        self._remember_usage(message)
        content = message.get("content")
        blocks = [_dict(block) for block in content] if isinstance(content, list) else []
        texts = [_text(block.get("text")) for block in blocks if block.get("type") == "text"]
        # A text beside a tool call is a comment on the work and not its result.
        self._last_text = "" if any(block.get("type") == "tool_use" for block in blocks) else "\n".join(texts).strip()
        for block in blocks:
            yield from self._block(block)

    def _block(self, block: base.Json) -> Iterator[base.AgentEvent]:
        kind = block.get("type")
        if kind == "text" and _text(block.get("text")):
            yield base.Text(_text(block.get("text")))
        elif kind == "thinking":
            if thought := _text(block.get("thinking")) or _text(block.get("text")):
                yield base.Thinking(thought)
        elif kind == "tool_use":
            tool, call_id = _text(block.get("name")), _text(block.get("id"))
            self._tools[call_id] = tool
            yield base.ToolUse(tool, _dict(block.get("input")), call_id)

    def _user(self, message: base.Json) -> Iterator[base.AgentEvent]:
        content = message.get("content")
        for block in content if isinstance(content, list) else []:
            if isinstance(block, dict) and block.get("type") == "tool_result":
                call_id = _text(block.get("tool_use_id"))
                output = _content_text(block.get("content"))
                self.left_in_background = self.left_in_background or "async_launched" in output
                yield base.ToolResult(self._tools.get(call_id, ""), output, call_id)

    def _result(self, event: base.Json) -> None:
        self.has_result = True
        self.is_error = bool(event.get("is_error"))
        self.prompt_too_long = event.get("terminal_reason") == "prompt_too_long"
        self._result_text = _text(event.get("result"))
        errors = event.get("errors")
        listed = [text for text in errors if isinstance(text, str)] if isinstance(errors, list) else []
        self.error_text = self._result_text or "\n".join(listed)
        if self.is_error and event.get("subtype") == "error_max_turns":
            self.error_text = self.error_text or "the agent reached its limit of turns"
        if not self.is_error:
            self.session_id = _text(event.get("session_id")) or self.session_id
        self._final_usage, self.model_usage = _dict(event.get("usage")), _dict(event.get("modelUsage"))

    # --- usage ---------------------------------------------------------------------------------------------------

    def _remember_usage(self, message: base.Json) -> None:
        usage, model = _dict(message.get("usage")), _text(message.get("model"))
        if usage and model and model != "<synthetic>":
            # One answer comes as several events that all carry the same figures.
            self._per_message[_text(message.get("id")) or str(len(self._per_message))] = (model, usage)

    def usage(self, *, resumed: bool, before: base.Json | None) -> tuple[base.Usage, ...]:
        """The totals of the result when there is one; else the sum over messages, each counted once."""
        if self._final_usage is not None:
            own = from_usage(self._provider, self._model or "unknown", self._final_usage)
            totals = from_model_usage(self._provider, self.model_usage)
            if final := of_this_run(totals, own, resumed=resumed, before=before):
                return final
        return add(from_usage(self._provider, model, usage) for model, usage in self._per_message.values())


def _content_text(content: Any) -> str:
    """A tool's result as text: a string as it is, text blocks joined, anything else as JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(_dict(block).get("type") == "text" for block in content):
        return "\n".join(_text(_dict(block).get("text")) for block in content)
    return "" if content is None else json.dumps(content, ensure_ascii=False)
