"""The control socket: one connection at a time, each a new generation that has to negotiate its capabilities anew.

A frame that is queued can be taken back until the writer begins with it; the writer's begin and the caller's cancel
exclude each other, so a caller always knows whether its frame is surely unsent or may have left.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from daemon_client import protocol
from daemon_client.clock import Clock
from daemon_client.errors import TransportError
from daemon_client.protocol import Json
from daemon_client.transport.http import is_loopback

log = logging.getLogger(__name__)


class OutboundFrame:
    """One frame on its way out: either begun by the writer or cancelled by its owner, never both."""

    def __init__(self, compose: Callable[[], str]) -> None:
        self._compose = compose
        self._lock = threading.Lock()
        self._begun = self._cancelled = False

    def begin_write(self) -> bool:
        """The writer asks to send. False when the owner took the frame back first."""
        with self._lock:
            if self._cancelled:
                return False
            self._begun = True
            return True

    def cancel(self) -> bool:
        """The owner takes the frame back. True means that it surely was not sent; False that it may have been."""
        with self._lock:
            if self._begun:
                return False
            self._cancelled = True
            return True

    def text(self) -> str:
        # Composed when it is written: what waits in a queue would describe a past state as the present one.
        return self._compose()


def encode(kind: str, payload: Json) -> str:
    return json.dumps({"type": kind, "payload": payload})


class _Connection(ClientConnection):
    """Notes when the peer was last heard: any byte counts, so pings and half of a large frame do too."""

    on_bytes: Callable[[], None] | None = None

    def data_received(self, data: bytes) -> None:
        if self.on_bytes:
            self.on_bytes()
        super().data_received(data)


class _Dial(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc  # the token must not follow a redirect


class Link:
    """One open connection: its queue, its writer, its generation and what the server announced on it."""

    def __init__(self, socket: ClientConnection, generation: int, queue_size: int, clock: Clock) -> None:
        self.generation = generation
        self.capabilities: frozenset[str] = frozenset()
        self._socket, self._clock = socket, clock
        self._queue: asyncio.Queue[OutboundFrame] = asyncio.Queue(queue_size)
        self.closed = False

    def offer(self, frame: OutboundFrame) -> bool:
        """Queue a frame; False (and it is surely unsent) when the link is closed or its queue is full."""
        if self.closed:
            return False
        try:
            self._queue.put_nowait(frame)
        except asyncio.QueueFull:
            return False
        return True

    async def write_queued(self) -> None:
        """Send what is queued until the link closes. A write that takes longer than the limit ends the link."""
        while not self.closed:
            frame = await self._queue.get()
            if self.closed or not frame.begin_write():
                continue
            try:
                async with self._clock.timeout(self._clock.io_seconds(protocol.WS_WRITE_TIMEOUT)):
                    await self._socket.send(frame.text())
            except (TimeoutError, ConnectionClosed, OSError) as error:
                log.debug("socket write ended the connection: %r", error)
                self.abort()

    def abort(self) -> None:
        """Cut the connection at once; bytes that are still buffered are thrown away."""
        self.closed = True
        self._socket.transport.abort()


class ControlSocket:
    """The daemon's socket. Owns the generation; `on_frame` is called for each inbound frame and must not block."""

    def __init__(
        self,
        base_url: str,
        headers: dict[str, str],
        clock: Clock,
        *,
        on_frame: Callable[[str, Json], None],
        on_connect: Callable[[], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        self._url, self._headers, self._clock = _socket_url(base_url), headers, clock
        self._local = is_loopback(base_url)
        self._on_frame, self._on_connect, self._on_disconnect = on_frame, on_connect, on_disconnect
        self.generation = 0
        self.link: Link | None = None

    @property
    def connected(self) -> bool:
        return self.link is not None and not self.link.closed

    def announce(self, capabilities: Iterable[str]) -> None:
        """Record what an acknowledgement on the current connection said. An acknowledgement of an earlier one cannot
        get here: frames are dispatched while their own connection is attached."""
        if self.link:
            self.link.capabilities = frozenset(capabilities)

    def negotiated(self, capability: str) -> Link | None:
        """The current link if the server announced `capability` on it."""
        link = self.link
        return link if link and not link.closed and capability in link.capabilities else None

    def send(self, kind: str, compose: Callable[[], Json]) -> bool:
        """Queue a frame that may be dropped. False when there is no connection or no room."""
        return bool(self.link and self.link.offer(OutboundFrame(lambda: encode(kind, compose()))))

    def disconnect(self) -> None:
        """End the current connection, for example because the set of runtimes changed."""
        if self.link:
            self.link.abort()

    async def serve(self, runtime_ids: Iterable[str]) -> None:
        """Connect, serve one connection until it ends, and tear it down. TransportError when it cannot connect."""
        ids = sorted(runtime_ids)
        socket = await self._dial(ids)
        heard = [self._clock.monotonic()]
        if isinstance(socket, _Connection):
            socket.on_bytes = lambda: heard.__setitem__(0, self._clock.monotonic())
        link = self._attach(socket, max(16, 2 * len(ids)))
        writer = asyncio.create_task(link.write_queued())
        try:
            self._on_connect()
            await self._read(socket, link, heard)
        finally:
            await self._tear_down(socket, link, writer)

    async def _dial(self, runtime_ids: list[str]) -> ClientConnection:
        query = f"?runtime_ids={quote(','.join(runtime_ids), safe='')}" if runtime_ids else ""
        limit = self._clock.io_seconds(protocol.WS_HANDSHAKE_TIMEOUT)
        dial = _Dial(
            self._url + query,
            additional_headers=self._headers,
            user_agent_header=None,
            compression=None,
            open_timeout=None,
            close_timeout=1,
            ping_interval=None,
            proxy=None if self._local else True,
            max_size=protocol.WS_READ_LIMIT,
            create_connection=_Connection,
        )
        try:
            async with self._clock.timeout(limit):
                return await dial
        except (TimeoutError, OSError, InvalidHandshake, InvalidURI, EOFError, ValueError) as error:
            raise TransportError(f"cannot open the control socket: {error or type(error).__name__}") from error

    def _attach(self, socket: ClientConnection, queue_size: int) -> Link:
        self.generation += 1
        self.link = Link(socket, self.generation, queue_size, self._clock)
        return self.link

    async def _read(self, socket: ClientConnection, link: Link, heard: list[float]) -> None:
        while not link.closed:
            left = heard[0] + protocol.WS_READ_DEADLINE - self._clock.monotonic()
            if left <= 0:
                log.info("control socket silent for %g s", protocol.WS_READ_DEADLINE)
                return
            try:
                async with self._clock.timeout(left):
                    data = await socket.recv()
            except TimeoutError:
                continue  # pings may have moved the deadline
            except ConnectionClosed as closed:
                log.info("control socket closed: %s", closed)
                return
            self._dispatch(data)

    def _dispatch(self, data: str | bytes) -> None:
        try:
            frame: Any = json.loads(data)
        except ValueError:
            return
        kind = frame.get("type") if isinstance(frame, dict) else None
        if not isinstance(kind, str):
            return
        payload = frame.get("payload")
        try:
            self._on_frame(kind, payload if isinstance(payload, dict) else {})
        except Exception:
            log.exception("frame %s could not be handled", kind)

    async def _tear_down(self, socket: ClientConnection, link: Link, writer: asyncio.Task[None]) -> None:
        # The order is the point: the socket dies first, so that no queued claim can leave once its caller has been
        # told that it did not, and has gone to HTTP.
        link.abort()
        self.link = None
        self._on_disconnect()
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)


def _socket_url(base_url: str) -> str:
    parts = urlsplit(base_url)
    scheme = {"http": "ws", "https": "wss"}[parts.scheme]
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + protocol.ROUTE_WS, "", ""))
