"""Reads the notifications of a Codex thread: what to show, what it used, and how its turn ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from daemon_client.agents import base

# Of a patch this much is kept for people; the files themselves are in the directory.
DIFF_BUDGET: Final = 64 * 1024
COMPLETED: Final = "completed"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> base.Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[base.Json]:
    return [_dict(entry) for entry in value] if isinstance(value, list) else []


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class TurnState:
    """One turn of one thread. Nothing counts before `begin`: a resumed thread repeats its history first.

    Notifications of other threads (sub-agents) and other turns are passed over. Unknown ones are no error.
    """

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self.thread_id = self.turn_id = self.model = ""
        self.begun = self.progressed = self.idle = False
        self.ended_as = ""
        self.error = ""
        self._final = self._last_text = ""
        self._before: tuple[int, ...] | None = None
        self._total: tuple[int, ...] = (0, 0, 0, 0)

    @property
    def output(self) -> str:
        """The deliverable: the message marked as the final answer, else the last message."""
        return self._final or self._last_text

    @property
    def has_final_answer(self) -> bool:
        return bool(self._final)

    def begin(self) -> None:
        self.begun = True

    def concerns(self, params: base.Json) -> bool:
        """Whether a notification belongs to the turn that was started here."""
        if not self.begun or _text(params.get("threadId")) not in ("", self.thread_id):
            return False
        turn = _text(params.get("turnId")) or _text(_dict(params.get("turn")).get("id"))
        return not turn or turn == self.turn_id

    def accept(self, method: str, params: base.Json) -> Iterator[base.AgentEvent]:
        """Take one notification; yields what is to be shown for it."""
        if method == "turn/started" and self.begun and params.get("threadId") == self.thread_id:
            # It may be read before the answer to the call that started the turn.
            self.turn_id = self.turn_id or _text(_dict(params.get("turn")).get("id"))
        if not self.concerns(params):
            return
        self.progressed = self.progressed or method.startswith("item/") or method == "turn/completed"
        match method:
            case "item/started":
                yield from self._item_started(_dict(params.get("item")))
            case "item/completed":
                yield from self._item_completed(_dict(params.get("item")))
            case "thread/tokenUsage/updated":
                self._count_usage(_dict(params.get("tokenUsage")))
            case "thread/status/changed":
                self.idle = _dict(params.get("status")).get("type") == "idle"
            case "turn/completed":
                self._end(_dict(params.get("turn")))
            case "error":
                yield from self._on_error(params)

    def _item_started(self, item: base.Json) -> Iterator[base.AgentEvent]:
        call_id = _text(item.get("id"))
        match item.get("type"):
            case "commandExecution":
                given = {key: item[key] for key in ("command", "cwd") if item.get(key)}
                yield base.ToolUse("exec_command", given, call_id)
            case "fileChange":
                yield base.ToolUse("patch_apply", {"changes": _changes(item)}, call_id)
            case "mcpToolCall":
                yield base.ToolUse(_mcp_name(item), _dict(item.get("arguments")), call_id)

    def _item_completed(self, item: base.Json) -> Iterator[base.AgentEvent]:
        call_id = _text(item.get("id"))
        match item.get("type"):
            case "commandExecution":
                output = _text(item.get("aggregatedOutput")) or _text(item.get("status"))
                yield base.ToolResult("exec_command", output, call_id)
            case "fileChange":
                yield base.ToolResult("patch_apply", _text(item.get("status")), call_id)
            case "mcpToolCall":
                yield base.ToolResult(_mcp_name(item), _mcp_outcome(item), call_id)
            case "webSearch":
                yield base.ToolUse("web_search", {"query": _text(item.get("query"))}, call_id)
                yield base.ToolResult("web_search", "", call_id)
            case "reasoning":
                summary = item.get("summary")
                if thought := "\n".join(map(_text, summary)) if isinstance(summary, list) else "":
                    yield base.Thinking(thought)
            case "agentMessage":
                yield from self._message(item)

    def _message(self, item: base.Json) -> Iterator[base.AgentEvent]:
        text = _text(item.get("text"))
        self._last_text = text or self._last_text
        if item.get("phase") == "final_answer":
            self._final = text
        if text:
            yield base.Text(text)

    def _on_error(self, params: base.Json) -> Iterator[base.AgentEvent]:
        said = _describe(_dict(params.get("error")))
        if params.get("willRetry"):
            yield base.AgentError(said or "the model service did not answer; trying again")
        else:
            self.error = said or self.error

    def _end(self, turn: base.Json) -> None:
        if self.ended_as:
            return
        self.ended_as = _text(turn.get("status")) or "without a status"
        self.error = _describe(_dict(turn.get("error"))) or self.error

    # --- usage ---------------------------------------------------------------------------------------------------

    def _count_usage(self, usage: base.Json) -> None:
        """`total` counts from the thread's birth: what it stood at before this turn is taken off again."""
        total, last = _figures(_dict(usage.get("total"))), _figures(_dict(usage.get("last")))
        if self._before is None:
            self._before = tuple(max(0, all_ - new) for all_, new in zip(total, last, strict=True))
        self._total = total

    def usage(self) -> tuple[base.Usage, ...]:
        """Tokens of this turn. Codex counts cached tokens inside of the input; here they stand beside it."""
        if self._before is None:
            return ()
        own = [max(0, now - before) for now, before in zip(self._total, self._before, strict=True)]
        whole, output, read, written = own
        entry = base.Usage(
            self._provider, self.model or "unknown", max(0, whole - read - written), output, read, written
        )
        return () if entry.is_empty else (entry,)


def _figures(usage: base.Json) -> tuple[int, ...]:
    names = ("inputTokens", "outputTokens", "cachedInputTokens", "cacheWriteInputTokens")
    return tuple(_count(usage.get(name)) for name in names)


def _describe(error: base.Json) -> str:
    """What an error says, with its kind and details: the message alone may be too polite to tell one from another."""
    info = error.get("codexErrorInfo")
    kind = _text(info) or next(iter(_dict(info)), "")
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).lower()
    parts = [_text(error.get("message")), _text(error.get("additionalDetails")), "" if words == "other" else words]
    return "\n".join(dict.fromkeys(part for part in parts if part))


def _changes(item: base.Json) -> list[base.Json]:
    budget, kept = DIFF_BUDGET, []
    for change in _list(item.get("changes")):
        diff = _text(change.get("diff"))[:budget]
        budget -= len(diff)
        kind = change.get("kind")
        kept.append({"path": _text(change.get("path")), "kind": _text(_dict(kind).get("type") or kind), "diff": diff})
    return kept


def _mcp_name(item: base.Json) -> str:
    return ".".join(filter(None, (_text(item.get("server")), _text(item.get("tool"))))) or "mcp"


def _mcp_outcome(item: base.Json) -> str:
    """Status and error only: what a foreign server answered may hold anything."""
    return " ".join(filter(None, (_text(item.get("status")), _describe(_dict(item.get("error"))))))
