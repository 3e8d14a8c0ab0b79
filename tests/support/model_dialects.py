"""What a model API is scripted with, and how OpenAI's two streaming dialects say it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

INPUT_TOKENS, OUTPUT_TOKENS, CACHE_READ_TOKENS, CACHE_WRITE_TOKENS = 11, 7, 5, 3

Json = dict[str, Any]


@dataclass(frozen=True)
class Say:
    """Answer with text and end the turn."""

    text: str


@dataclass(frozen=True)
class UseTool:
    """Ask for one tool call; the CLI runs it and comes back with the result."""

    name: str
    input: Json
    text: str = ""


@dataclass(frozen=True)
class Refuse:
    """Answer with an error status, e.g. 429 `rate_limit_error` or 500 `api_error`, as often as it is asked."""

    status: int
    kind: str
    message: str
    headers: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """Start to stream and drop the connection in the middle, as often as it is asked."""

    text: str = "half an ans"


@dataclass(frozen=True)
class Hang:
    """Take the request, stream `text` and then say nothing more until the server stops."""

    text: str = ""


Step = Say | UseTool | Refuse | Cut | Hang


def responses(model: str, answer_id: str, step: Step) -> Iterator[Json]:
    """Events of the Responses API. Cached tokens are inside of the input here."""
    answer = {"id": f"resp_{answer_id}", "object": "response", "status": "in_progress", "model": model, "output": []}
    yield {"type": "response.created", "response": answer}
    output: list[Json] = []
    if not isinstance(step, Refuse) and step.text:
        message = {"type": "message", "id": answer_id, "role": "assistant", "status": "in_progress", "content": []}
        yield {"type": "response.output_item.added", "output_index": 0, "item": message}
        place = {"item_id": answer_id, "output_index": 0, "content_index": 0}
        yield {"type": "response.output_text.delta", "delta": step.text, **place}
        if isinstance(step, Cut | Hang):
            return
        content = [{"type": "output_text", "text": step.text, "annotations": []}]
        output.append(message | {"status": "completed", "content": content})
    if isinstance(step, Cut | Hang):
        return
    if isinstance(step, UseTool):
        call = {"type": "function_call", "id": f"fc_{answer_id}", "call_id": f"call_{answer_id}", "status": "completed"}
        output.append(call | {"name": step.name, "arguments": json.dumps(step.input)})
    for index, item in enumerate(output):
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    whole = INPUT_TOKENS + CACHE_READ_TOKENS
    usage = {"input_tokens": whole, "output_tokens": OUTPUT_TOKENS, "total_tokens": whole + OUTPUT_TOKENS}
    usage |= {"input_tokens_details": {"cached_tokens": CACHE_READ_TOKENS}}
    done = answer | {"status": "completed", "output": output, "usage": usage}
    yield {"type": "response.completed", "response": done}


def chat(model: str, answer_id: str, step: Step) -> Iterator[Json]:
    """Chunks of Chat Completions; the last one carries the usage."""
    base = {"id": answer_id, "object": "chat.completion.chunk", "created": 1, "model": model}

    def chunk(delta: Json, finish: str | None = None) -> Json:
        return base | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    if not isinstance(step, Refuse) and step.text:
        yield chunk({"content": step.text})
    if isinstance(step, Cut | Hang):
        return
    if isinstance(step, UseTool):
        function = {"name": step.name, "arguments": json.dumps(step.input)}
        yield chunk({"tool_calls": [{"index": 0, "id": f"call_{answer_id}", "type": "function", "function": function}]})
    yield chunk({}, "tool_calls" if isinstance(step, UseTool) else "stop")
    whole = INPUT_TOKENS + CACHE_READ_TOKENS
    usage = {"prompt_tokens": whole, "completion_tokens": OUTPUT_TOKENS, "total_tokens": whole + OUTPUT_TOKENS}
    yield base | {"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": CACHE_READ_TOKENS}}}
