"""A TCP proxy on loopback that can fail a connection in every way a network does, at a moment that a test chooses.

    with Proxy(server_port) as proxy:
        trap = proxy.trap(lambda unit: unit.down and "daemon:rpc_response" in unit.text)
        ...
        trap.wait()          # the answer was made by the server and never reached the client

It runs in a thread of its own and forwards *units*: one frame of a WebSocket, one chunk of anything else. Every unit is
recorded before it is forwarded, so a test can count what was really on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.support.frames import FrameReader

CHUNK = 64 * 1024
TEXT_LIMIT = 64 * 1024
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Unit:
    """What is about to be forwarded. `down`: from server to client. `request`: request line that it belongs to."""

    connection: int
    down: bool
    websocket: bool
    request: str
    text: str
    at: float


@dataclass
class Trap:
    """Cuts the connection of the first unit for which `matches` holds, instead of forwarding that unit.

    With `forward` the unit passes first. With `hold` nothing is cut: the unit passes and is the last that does, on any
    connection, until `release`. `caught` holds the unit that it caught.
    """

    matches: Callable[[Unit], bool]
    forward: bool = False
    hold: bool = False
    caught: Unit | None = None
    _sprung: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float = 15.0) -> Unit:
        assert self._sprung.wait(seconds), f"nothing was caught within {seconds:g} s"
        assert self.caught is not None
        return self.caught

    @property
    def sprung(self) -> bool:
        return self._sprung.is_set()

    def spring(self, unit: Unit) -> None:
        self.caught = unit
        self._sprung.set()


class Proxy:
    """Forwards to `127.0.0.1:target`. All methods may be called from any thread and have taken effect on return."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay = 0.0
        self.refuse_websocket = False
        self.units: list[Unit] = []
        self.connections = 0
        self.refused = 0
        self.bytes_up = self.bytes_down = 0
        self.traps: list[Trap] = []
        self.holding = threading.Event()
        self.port = 0
        self._limit: tuple[bool, int] | None = None
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()
        self._do(self._settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    # -- faults --

    def up(self) -> None:
        """Listen; after `down` on the same port again."""
        self._do(self._listen())

    def down(self) -> None:
        """The server is not there: connections are refused, present ones are reset."""
        self._do(self._close())

    def cut(self) -> int:
        """Reset every present connection; new ones are served. Returns how many there were."""
        return self._do(self._cut())

    def hold(self) -> None:
        """Present and new connections stay open and nothing passes in either direction, as on a dead network path."""
        self.holding.set()

    def hold_present(self) -> None:
        """The same for the connections that there are now; new ones are served."""
        for link in list(self._links):
            link.dead = True

    def release(self) -> None:
        """Ends `hold`; what has piled up passes."""
        self.holding.clear()
        self._do(self._wake())

    def trap(self, matches: Callable[[Unit], bool], *, forward: bool = False, hold: bool = False) -> Trap:
        trap = Trap(matches, forward, hold)
        self.traps.append(trap)
        return trap

    def cut_after(self, count: int, *, down: bool) -> None:
        """Each connection made from now on is reset once `count` bytes went in that direction; not one byte more."""
        self._limit = (down, count)

    def retarget(self, port: int) -> None:
        """New connections go to another port; present ones are reset, as a load balancer does for a dead backend."""
        self.target = port
        self.cut()

    # -- observation --

    def seen(self, part: str, *, down: bool = False) -> list[Unit]:
        """Units of one direction whose text holds `part`: `"POST /api/…"` for requests, a frame's type for frames."""
        return [unit for unit in list(self.units) if unit.down == down and part in unit.text]

    # -- inside the loop --

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        listener = socket.create_server((HOST, self.port), backlog=128)
        self.port = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._serve, sock=listener)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _cut(self) -> int:
        links = list(self._links)
        for link in links:
            link.reset()
        return len(links)

    async def _wake(self) -> None:
        for link in self._links:
            link.dead = False
            link.pass_on.set()

    async def _settle(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            onward = await asyncio.open_connection(HOST, self.target)
        except OSError:
            self.refused += 1
            _reset(writer)
            return
        link = _Link(self, self.connections, (reader, writer), onward, self._limit)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    def judge(self, unit: Unit) -> tuple[bool, bool]:
        """(forward, cut) for one unit."""
        self.units.append(unit)
        if self.refuse_websocket and not unit.down and "/api/daemon/ws" in unit.request:
            return False, True
        for trap in self.traps:
            if not trap.sprung and trap.matches(unit):
                if trap.hold:
                    self.holding.set()
                trap.spring(unit)
                return trap.forward or trap.hold, not trap.hold
        return True, False


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection: two pumps that end together."""

    def __init__(
        self, proxy: Proxy, number: int, client: Streams, server: Streams, limit: tuple[bool, int] | None
    ) -> None:
        self.proxy, self.number, self.limit = proxy, number, limit
        self.client, self.server = client, server
        self.request = ""
        self.websocket = self.dead = False
        self.pass_on = asyncio.Event()
        self._passed = {True: 0, False: 0}

    async def run(self) -> None:
        pumps = [
            asyncio.create_task(self._pump(self.client[0], self.server[1], down=False)),
            asyncio.create_task(self._pump(self.server[0], self.client[1], down=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self.client[1].close()
            self.server[1].close()

    def reset(self) -> None:
        _reset(self.client[1])
        _reset(self.server[1])

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, down: bool) -> None:
        frames = FrameReader()
        with contextlib.suppress(OSError):
            while chunk := await source.read(CHUNK):
                for raw, text in self._units(frames, chunk, down):
                    await self._until_passing()
                    if not await self._forward(raw, text, sink, down):
                        return

    async def _until_passing(self) -> None:
        while self.dead or self.proxy.holding.is_set():
            self.pass_on.clear()
            await self.pass_on.wait()

    def _units(self, frames: FrameReader, chunk: bytes, down: bool) -> list[tuple[bytes, str]]:
        if self.websocket:
            return frames.feed(chunk)
        text = chunk[:TEXT_LIMIT].decode("latin-1")
        if not down:
            self.request = text.split("\r\n", 1)[0] if " HTTP/1." in text[:8192] else self.request
        elif text.startswith("HTTP/1.1 101"):
            # Frames may follow the handshake in the same chunk.
            self.websocket = True
            head, _, rest = chunk.partition(b"\r\n\r\n")
            return [(head + b"\r\n\r\n", head.decode("latin-1")), *frames.feed(rest)]
        return [(chunk, text)]

    async def _forward(self, raw: bytes, text: str, sink: asyncio.StreamWriter, down: bool) -> bool:
        if self.proxy.delay:
            await asyncio.sleep(self.proxy.delay)
        unit = Unit(self.number, down, self.websocket, self.request, text, time.monotonic())
        forward, cut = self.proxy.judge(unit)
        if self.limit and self.limit[0] == down:
            room = self.limit[1] - self._passed[down]
            raw, cut = (raw[:room], True) if len(raw) >= room else (raw, cut)
        if forward:
            sink.write(raw)
            await sink.drain()
            self._passed[down] += len(raw)
            self._count(len(raw), down)
        if cut:
            self.reset_after_flush(sink, flush=forward)
        return not cut

    def reset_after_flush(self, sink: asyncio.StreamWriter, *, flush: bool) -> None:
        # A reset throws away what the kernel still holds for the peer: what was to be forwarded is closed in order.
        for writer in (self.client[1], self.server[1]):
            if flush and writer is sink:
                writer.close()
            else:
                _reset(writer)

    def _count(self, size: int, down: bool) -> None:
        if down:
            self.proxy.bytes_down += size
        else:
            self.proxy.bytes_up += size


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST: the peer sees an error, not an orderly end."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
