"""One accepted or refused socket, below what daemons and browsers say over it: admission, sending, groups, ending."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec
from channels.layers import get_channel_layer
from django.db import InterfaceError, OperationalError

from queue_app.error_map import answer_to
from queue_app.errors import QueueError

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

SEND_LIMIT = 10.0
KEEP_ALIVE = 45.0
JOIN_AGAIN = 5.0
"""Seconds: for one frame to leave, of silence before a sign of life, between attempts to hear hints."""

TOO_BIG, GOING_AWAY, NOT_AUTHORISED = 1009, 1001, 4401


def header(scope: Scope, name: str) -> str:
    """A header of the handshake, '' when it is missing."""
    wanted = name.lower().encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted), "")


async def refuse(scope: Scope, send: Send, error: Exception) -> None:
    """Answer a handshake with an HTTP status and a JSON body; servers that cannot do that answer 403."""
    status, body = _answer(error)
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 4000 + status})
        return
    headers = [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": msgspec.json.encode(body)})


def _answer(error: Exception) -> tuple[int, dict[str, Any]]:
    if isinstance(error, QueueError):
        return answer_to(error)
    if isinstance(error, OperationalError | InterfaceError):
        return 503, {"error": "temporarily unavailable", "code": "unavailable"}
    log.error("a handshake failed", exc_info=error)
    return 500, {"error": "internal error", "code": "internal"}


class Outbox:
    """What waits to be sent: answers in order, hints by key so that a repeat replaces the one that waits.

    Nothing that puts something in here ever waits, and hints cannot outgrow the number of their keys.
    """

    def __init__(self) -> None:
        self._answers: deque[tuple[str, Callable[[], None] | None]] = deque()
        self._hints: dict[Any, str] = {}
        self._news = asyncio.Event()
        self.closing: int | None = None

    def __len__(self) -> int:
        return len(self._answers) + len(self._hints)

    def answer(self, text: str, leaving: Callable[[], None] | None = None) -> None:
        """Queue a frame; `leaving` is called when its turn has come."""
        self._answers.append((text, leaving))
        self._news.set()

    def hint(self, key: Any, text: str) -> None:
        """Queue a frame that stands for all its kind."""
        self._hints[key] = text
        self._news.set()

    def close(self, code: int) -> None:
        """End the connection once what waits has left."""
        self.closing = code
        self._news.set()

    async def take(self, limit: float) -> tuple[str, Callable[[], None] | None] | None:
        """The next frame; None after `limit` seconds without one, or at the close."""
        while not self._answers and not self._hints:
            if self.closing is not None:
                return None
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), limit)
            except TimeoutError:
                return None
        if self._answers:
            return self._answers.popleft()
        return self._hints.pop(next(iter(self._hints))), None


class Connection:
    """An accepted socket. Subclasses say what they hear (`heard`) and which groups they listen to."""

    keep_alive = '{"type":"keepalive","payload":{}}'

    def __init__(self, receive: Receive, send: Send, groups: Iterable[str]) -> None:
        self._receive, self._send, self._groups = receive, send, list(groups)
        self._jobs: set[asyncio.Task[None]] = set()
        self.outbox = Outbox()

    async def run(self) -> None:
        """Serve until one side ends it. Jobs that run then are left to end by themselves."""
        await self._send({"type": "websocket.accept"})
        loops = [asyncio.ensure_future(loop()) for loop in (self._read, self._write, self._listen)]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in done:
                if (error := loop.exception()) is not None and not isinstance(error, OSError):
                    log.debug("socket ended: %r", error)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    def spawn(self, job: Awaitable[None]) -> None:
        """Let something slow run beside the reader."""
        task = asyncio.ensure_future(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    def heard(self, data: bytes) -> None:
        """A frame came. Must not wait."""
        raise NotImplementedError

    def told(self, message: dict[str, Any]) -> None:
        """A message of a group came. Must not wait."""
        raise NotImplementedError

    async def _read(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            if message["type"] == "websocket.receive":
                text = message.get("text")
                self.heard(text.encode() if text is not None else message.get("bytes") or b"")

    async def _write(self) -> None:
        while True:
            item = await self.outbox.take(KEEP_ALIVE)
            if item is None and self.outbox.closing is not None:
                await self._send({"type": "websocket.close", "code": self.outbox.closing})
                return
            text, leaving = item or (self.keep_alive, None)
            # Before the frame leaves: whoever reads it may ask again before this coroutine has its turn.
            if leaving is not None:
                leaving()
            await asyncio.wait_for(self._send({"type": "websocket.send", "text": text}), SEND_LIMIT)

    async def _listen(self) -> None:
        layer = get_channel_layer()
        channel: str | None = None
        joined: list[str] = []
        try:
            while True:
                try:
                    channel = channel or await layer.new_channel()
                    for group in self._groups[len(joined) :]:
                        await layer.group_add(group, channel)
                        joined.append(group)
                    break
                except Exception as error:
                    # Without hints a daemon polls; the socket still carries heartbeats and claims.
                    log.warning("hints not heard yet: %s", type(error).__name__)
                    await asyncio.sleep(JOIN_AGAIN)
            while True:
                self.told(await layer.receive(channel))
        finally:
            for group in joined:
                await _discard(layer, group, channel)


async def _discard(layer: Any, group: str, channel: str | None) -> None:
    try:
        await layer.group_discard(group, channel)
    except Exception as error:
        log.debug("group not left: %r", error)
