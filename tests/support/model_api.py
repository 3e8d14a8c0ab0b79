"""A model API on loopback, so that real agent CLIs can be driven without any network.

It streams in three dialects: Anthropic Messages here, OpenAI Responses and Chat Completions in `model_dialects`.

    with ModelApi([UseTool("Write", {...}), Say("done")]) as api:
        env = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": API_KEY, ...}

Every request of a main turn (one that offers tools) takes the next step of the script; when the script is used up, the
last answer is `Say("done")`. Side requests (titles, probes) get a short answer and use no step. Requests are kept in
`requests`; `wait_for` waits for a condition on the server without sleeping.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.support import model_dialects
from tests.support.model_dialects import CACHE_READ_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, Cut, Hang, Refuse, Say, UseTool
from tests.support.model_dialects import CACHE_WRITE_TOKENS as CACHE_WRITE_TOKENS

# Long, because some CLIs mask each occurrence of the key's text in their output.
API_KEY = "sk-ant-loopback-0123456789-abcdefghijklmnopqrstuvwxyz"
Json = dict[str, Any]
Step = Say | UseTool | Refuse | Cut | Hang
_STICKY = (Refuse, Cut)


class ModelApi:
    """The server; runs in threads of its own, so synchronous and asynchronous tests use it alike."""

    def __init__(self, script: Iterable[Step] = ()) -> None:
        self._steps = list(script)
        self._changed = threading.Condition()
        self.requests: list[Json] = []
        self.hanging = 0
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.02},
            daemon=True,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join(timeout=10)
        self._server.server_close()

    @property
    def turns(self) -> list[Json]:
        """Bodies of the main-turn requests, in order."""
        with self._changed:
            return [body for body in self.requests if body.get("tools")]

    def wait_for(self, condition: Callable[[ModelApi], bool], timeout: float = 30.0) -> bool:
        """Block until `condition(self)` holds after some request; False when `timeout` seconds passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self), timeout)

    def script(self, steps: Iterable[Step]) -> None:
        """Replace what is left of the script."""
        with self._changed:
            self._steps = list(steps)

    def take(self, body: Json) -> Step:
        """Record a request and choose its answer."""
        with self._changed:
            self.requests.append(body)
            step: Step = Say("ok")
            if body.get("tools"):
                step = self._steps[0] if self._steps else Say("done")
                if self._steps and not isinstance(step, _STICKY):
                    del self._steps[0]
            if isinstance(step, Hang):
                self.hanging += 1
            self._changed.notify_all()
            return step


class _Handler(BaseHTTPRequestHandler):
    api: ModelApi
    protocol_version = "HTTP/1.1"
    _ids = itertools.count(1)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: what was asked is in `ModelApi.requests`."""

    def do_HEAD(self) -> None:
        self._json(200, {})

    def do_GET(self) -> None:
        self._json(
            404,
            {
                "type": "error",
                "error": {"type": "not_found_error", "message": self.path},
            },
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        route = self.path.split("?")[0].rpartition("/v1/")[2]
        if route not in _DIALECTS:
            return self._json(
                404,
                {
                    "type": "error",
                    "error": {"type": "not_found_error", "message": self.path},
                },
            )
        step = self.api.take(body)
        try:
            self._answer(body, step, _DIALECTS[route])
        except OSError:  # the CLI has gone, as some tests want it to
            self.close_connection = True

    def _answer(self, body: Json, step: Step, dialect: Callable[[str, str, Step], Iterator[Json]]) -> None:
        if isinstance(step, Refuse):
            error = {
                "type": "error",
                "error": {"type": step.kind, "message": step.message},
            }
            self._json(step.status, error, step.headers)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in dialect(body.get("model", "model"), f"msg_{next(self._ids):08d}", step):
            name = f"event: {event['type']}\n" if "type" in event else ""
            self._chunk(f"{name}data: {json.dumps(event)}\n\n".encode())
        if isinstance(step, Cut):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif isinstance(step, Hang):
            self.api.closing.wait(600)
            self.close_connection = True
        else:
            if dialect is model_dialects.chat:
                self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, status: int, body: Json, headers: Json | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _events(model: str, message_id: str, step: Step) -> Iterator[Json]:
    usage = {
        "input_tokens": INPUT_TOKENS,
        "output_tokens": 1,  # preliminary, as the real service sends it: summing these per event counts wrongly
        "cache_read_input_tokens": CACHE_READ_TOKENS,
        "cache_creation_input_tokens": CACHE_WRITE_TOKENS,
    }
    message = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
    }
    yield {
        "type": "message_start",
        "message": message | {"stop_reason": None, "stop_sequence": None, "usage": usage},
    }
    blocks = list(_blocks(message_id, step))
    for index, (start, delta) in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        if isinstance(step, Cut | Hang):
            return
        yield {"type": "content_block_stop", "index": index}
    if isinstance(step, Hang):
        return
    reason = "tool_use" if isinstance(step, UseTool) else "end_turn"
    delta = {"stop_reason": reason, "stop_sequence": None}
    yield {
        "type": "message_delta",
        "delta": delta,
        "usage": {"output_tokens": OUTPUT_TOKENS},
    }
    yield {"type": "message_stop"}


def _blocks(message_id: str, step: Step) -> Iterator[tuple[Json, Json]]:
    if not isinstance(step, Refuse) and step.text:
        yield {"type": "text", "text": ""}, {"type": "text_delta", "text": step.text}
    if isinstance(step, UseTool):
        call = {
            "type": "tool_use",
            "id": f"toolu_{message_id}",
            "name": step.name,
            "input": {},
        }
        yield call, {"type": "input_json_delta", "partial_json": json.dumps(step.input)}


_DIALECTS = {"messages": _events, "responses": model_dialects.responses, "chat/completions": model_dialects.chat}
