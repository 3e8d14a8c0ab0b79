"""The control socket and the calls over it: what is surely unsent, what is uncertain, and what a reconnect forgets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket as sockets
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from daemon_client import protocol
from daemon_client.clock import Clock, ManualClock, SystemClock
from daemon_client.errors import RpcRejected, RpcUnavailable, RpcUncertain, TransportError
from daemon_client.protocol import Json
from daemon_client.transport.http import client_headers
from daemon_client.transport.rpc import RpcClient
from daemon_client.transport.ws import ControlSocket, OutboundFrame
from tests.support.fake_server import TOKEN, FakeServer
from tests.support.wait import until_async


class Wire:
    """A control socket and its calls, without the engine."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.frames: list[tuple[str, Json]] = []
        self.rpc = RpcClient(clock)
        self.order: list[str] = []
        self.socket = ControlSocket(
            url,
            client_headers(TOKEN),
            clock,
            on_frame=self._frame,
            on_connect=lambda: self.order.append("connect"),
            on_disconnect=self._disconnected,
        )
        self.rpc.bind(self.socket)

    def _frame(self, kind: str, payload: Json) -> None:
        self.frames.append((kind, payload))
        if kind == protocol.FRAME_RPC_RESPONSE:
            self.rpc.on_response(payload)
        if kind == protocol.FRAME_HEARTBEAT_ACK:
            self.socket.announce(payload["server_capabilities"])

    def _disconnected(self) -> None:
        self.order.append("disconnect")
        self.rpc.fail_pending()

    async def claim(self) -> Json:
        return await self.rpc.call(protocol.RPC_TASKS_CLAIM, {"runtime_ids": [], "max_tasks": 1}, 5.0)


@contextlib.asynccontextmanager
async def connected(url: str, clock: Clock | None = None, *, negotiate: bool = True) -> AsyncIterator[Wire]:
    wire = Wire(url, clock or SystemClock())
    life = asyncio.create_task(wire.socket.serve(["r1"]))
    try:
        await until_async(lambda: wire.socket.connected or life.done())
        if negotiate:
            wire.socket.send(protocol.FRAME_HEARTBEAT, lambda: {"runtime_id": "r1"})
            await until_async(lambda: wire.socket.negotiated("rpc-v1"))
        yield wire
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as fake:
        yield fake


async def test_handshake_carries_login_and_runtimes(server: FakeServer) -> None:
    async with connected(server.url):
        seen = server.seen[0]
    assert seen.query == {"runtime_ids": "r1"}
    assert seen.headers["Authorization"] == f"Bearer {TOKEN}"
    assert "Origin" not in seen.headers
    assert "Sec-WebSocket-Extensions" not in seen.headers


async def test_a_refused_handshake_is_a_transport_error(server: FakeServer) -> None:
    server.accept_sockets = False
    with pytest.raises(TransportError):
        await Wire(server.url, SystemClock()).socket.serve([])


async def test_a_redirect_does_not_get_the_token(server: FakeServer) -> None:
    async with FakeServer() as other:
        location = other.url.replace("http", "ws") + protocol.ROUTE_WS
        server.fault("ws", hold=None, status=302)
        with pytest.raises(TransportError):
            await Wire(server.url, SystemClock()).socket.serve([])
        assert location
        assert not other.seen


async def test_calls_need_a_negotiated_connection(server: FakeServer) -> None:
    """W-05: without `rpc-v1` in an acknowledgement no call goes over the socket."""
    server.capabilities = ()
    async with connected(server.url, negotiate=False) as wire:
        wire.socket.send(protocol.FRAME_HEARTBEAT, lambda: {"runtime_id": "r1"})
        await until_async(lambda: wire.frames)
        with pytest.raises(RpcUnavailable):
            await wire.claim()
    assert not [each for each in server.seen if each.method == "RPC"]


async def test_a_reconnect_forgets_what_was_negotiated(server: FakeServer) -> None:
    """W-06: generation up, capabilities empty, and no call before the new connection has acknowledged."""
    wire = Wire(server.url, SystemClock())
    for generation in (1, 2):
        life = asyncio.create_task(wire.socket.serve(["r1"]))
        await until_async(lambda: wire.socket.connected)
        assert wire.socket.generation == generation
        with pytest.raises(RpcUnavailable):
            await wire.claim()
        wire.socket.send(protocol.FRAME_HEARTBEAT, lambda: {"runtime_id": "r1"})
        await until_async(lambda: wire.socket.negotiated("rpc-v1"))
        assert (await wire.claim()) == {"tasks": []}
        await server.cut_sockets()
        await life


async def test_answers_find_their_callers_in_any_order() -> None:
    """W-03: three calls in flight, answered last to first."""
    held: list[Json] = []

    async def answer(connection: ServerConnection) -> None:
        async for message in connection:
            frame = json.loads(message)
            if frame["type"] == protocol.FRAME_HEARTBEAT:
                await connection.send(_ack())
                continue
            held.append(frame["payload"])
            if len(held) == 3:
                for request in reversed(held):
                    payload = {"request_id": request["request_id"], "status": 200, "body": request["body"]}
                    await connection.send(json.dumps({"type": protocol.FRAME_RPC_RESPONSE, "payload": payload}))

    async with serve(answer, "127.0.0.1", 0) as peer, connected(_url(peer)) as wire:
        calls = [wire.rpc.call("tasks.claim", {"n": n}, 5.0) for n in range(3)]
        assert await asyncio.gather(*calls) == [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.mark.parametrize("mode", ["cut", "silent"])
async def test_sent_without_an_answer_is_uncertain(server: FakeServer, mode: str) -> None:
    """W-09: cut after the server acted, or silence for 5 + 2 s."""
    clock = ManualClock()
    server.rpc_mode = mode
    async with connected(server.url, clock) as wire:
        call = asyncio.create_task(wire.claim())
        await until_async(lambda: [each for each in server.seen if each.method == "RPC"])
        if mode == "silent":
            await clock.advance(6.9)
            assert not call.done()
            await clock.advance(0.2)
        with pytest.raises(RpcUncertain):
            await call


async def test_a_refusal_is_certain(server: FakeServer) -> None:
    server.rpc_mode = "reject"
    async with connected(server.url) as wire:
        with pytest.raises(RpcRejected):
            await wire.claim()


@contextlib.asynccontextmanager
async def deaf_peer() -> AsyncIterator[tuple[str, list[Json], asyncio.Event]]:
    """Acknowledges the first heartbeat, then reads nothing until told to: the client's writes back up."""
    received: list[Json] = []
    listen = asyncio.Event()

    async def answer(connection: ServerConnection) -> None:
        received.append(json.loads(await connection.recv()))
        await connection.send(_ack())
        await listen.wait()
        async for message in connection:
            received.append(json.loads(message))

    async with serve(answer, "127.0.0.1", 0, max_queue=1, max_size=None, write_limit=1024) as peer:
        try:
            yield _url(peer), received, listen
        finally:
            listen.set()


async def stuff(wire: Wire) -> None:
    """Block the writer: a frame larger than what the buffers on the way can take."""
    wire.socket.send("test:ballast", lambda: {"text": "x" * 30_000_000})
    assert wire.socket.link
    await until_async(lambda: wire.socket.link and wire.socket.link._queue.empty())


async def test_a_full_queue_is_surely_unsent() -> None:
    """W-08: no room in the queue, so another way may be taken at once."""
    async with deaf_peer() as (url, received, _listen), connected(url) as wire:
        await stuff(wire)
        while wire.socket.send("test:filler", dict):
            pass
        with pytest.raises(RpcUnavailable):
            await wire.claim()
        assert len(received) == 1


async def test_a_timeout_before_the_write_is_surely_unsent() -> None:
    """W-08, W-12: the call waits behind a blocked writer, times out, and its frame never leaves."""
    clock = ManualClock()
    async with deaf_peer() as (url, received, listen), connected(url, clock) as wire:
        await stuff(wire)
        call = asyncio.create_task(wire.claim())
        await clock.advance(7.1)
        with pytest.raises(RpcUnavailable):
            await call
        listen.set()
        wire.socket.send("test:last", dict)
        await until_async(lambda: [each for each in received if each["type"] == "test:last"])
        assert protocol.FRAME_RPC_REQUEST not in {each["type"] for each in received}


async def test_teardown_kills_the_socket_before_it_answers_the_callers() -> None:
    """W-13: a peer that has gone silent, the writer blocked, a claim behind it. When the caller learns that its claim
    was not sent (and would go to HTTP), the claim cannot leave any more, however long the peer then listens."""
    clock = ManualClock()
    async with deaf_peer() as (url, received, listen), connected(url, clock) as wire:
        await clock.advance(55)
        await stuff(wire)
        link = wire.socket.link
        assert link
        told: list[bool] = []

        async def claim() -> None:
            with pytest.raises(RpcUnavailable):
                await wire.claim()
            told.append(link._socket.transport.is_closing())

        call = asyncio.create_task(claim())
        await until_async(lambda: not link._queue.empty())
        await clock.advance(5.5)
        await call
        assert told == [True]
        listen.set()
        await until_async(lambda: not wire.socket.connected)
    assert protocol.FRAME_RPC_REQUEST not in {each["type"] for each in received}


def test_begin_and_cancel_exclude_each_other() -> None:
    """W-12: 100,000 races between a writer and an owner on two threads; exactly one of them wins each."""
    frames = [OutboundFrame(str) for _ in range(100_000)]
    begun: list[bool] = []
    start = threading.Barrier(2)

    def write() -> None:
        start.wait()
        begun.extend(frame.begin_write() for frame in frames)

    writer = threading.Thread(target=write)
    writer.start()
    start.wait()
    cancelled = [frame.cancel() for frame in frames]
    writer.join()
    assert all(one is not other for one, other in zip(begun, cancelled, strict=True))


async def test_a_frame_is_either_unsent_or_uncertain(server: FakeServer) -> None:
    """W-12: calls cancelled at random moments; what counts as unsent never reached the server."""
    server.rpc_mode = "silent"
    unsent: list[int] = []
    async with connected(server.url) as wire:
        link = wire.socket.link
        assert link

        async def one(number: int) -> None:
            payload = {"request_id": str(number), "method": "m", "body": {"runtime_ids": [], "max_tasks": number}}
            text = json.dumps({"type": protocol.FRAME_RPC_REQUEST, "payload": payload})
            frame = OutboundFrame(lambda: text)
            offered = link.offer(frame)
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
            if frame.cancel() or not offered:
                unsent.append(number)

        for start in range(0, 5000, 10):
            await asyncio.gather(*(one(number) for number in range(start, start + 10)))
        wire.socket.send("test:last", dict)
        await until_async(lambda: [each for each in server.seen if each.path == "test:last"])
    arrived = {each.body["max_tasks"] for each in server.seen if each.method == "RPC"}
    assert unsent
    assert arrived
    assert not arrived & set(unsent)


@pytest.mark.parametrize(("megabytes", "accepted"), [(60, True), (65, False)])
async def test_the_read_limit(megabytes: int, accepted: bool) -> None:
    """W-14, C-23: a claim of 32 full tasks fits; more than 64 MiB ends the connection and leaves the call uncertain."""
    piece = "x" * (megabytes * 1024 * 1024 // 32)

    async def answer(connection: ServerConnection) -> None:
        async for message in connection:
            frame = json.loads(message)
            if frame["type"] == protocol.FRAME_HEARTBEAT:
                await connection.send(_ack())
                continue
            body = {"tasks": [{"id": str(n), "handoff_note": piece} for n in range(32)]}
            payload = {"request_id": frame["payload"]["request_id"], "status": 200, "body": body}
            with contextlib.suppress(Exception):
                await connection.send(json.dumps({"type": protocol.FRAME_RPC_RESPONSE, "payload": payload}))

    async with serve(answer, "127.0.0.1", 0, max_size=None, compression=None) as peer, connected(_url(peer)) as wire:
        if accepted:
            assert len((await wire.claim())["tasks"]) == 32
            return
        with pytest.raises(RpcUncertain):
            await wire.claim()
        await until_async(lambda: not wire.socket.connected)


async def test_a_silent_peer_is_given_up_after_a_minute() -> None:
    clock = ManualClock()
    async with serve(_mute, "127.0.0.1", 0, ping_interval=None) as peer:
        wire = Wire(_url(peer), clock)
        life = asyncio.create_task(wire.socket.serve([]))
        await until_async(lambda: wire.socket.connected)
        await clock.advance(59)
        assert wire.socket.connected
        await clock.advance(2)
        await life
    assert wire.order == ["connect", "disconnect"]


async def test_a_ping_keeps_the_connection() -> None:
    """A server with nothing to say only pings; that is life enough."""
    clock = ManualClock()
    peers: list[ServerConnection] = []

    async def listen(connection: ServerConnection) -> None:
        peers.append(connection)
        await connection.wait_closed()

    async with serve(listen, "127.0.0.1", 0, ping_interval=None) as peer:
        wire = Wire(_url(peer), clock)
        life = asyncio.create_task(wire.socket.serve([]))
        await until_async(lambda: wire.socket.connected and peers)
        await clock.advance(50)
        await (await peers[0].ping())
        await clock.advance(50)
        assert wire.socket.connected
        await clock.advance(15)
        await life


async def test_odd_frames_do_no_harm(server: FakeServer) -> None:
    async with connected(server.url, negotiate=False) as wire:
        for text in ("nonsense", "[]", '{"type": 5}', '{"type": "daemon:new", "payload": null}'):
            await server.sockets[0].send_str(text)
        await server.sockets[0].send_bytes(b"\xff\xfe")
        await server.hint()
        await until_async(lambda: (protocol.FRAME_TASK_AVAILABLE, {"runtime_id": ""}) in wire.frames)
        assert wire.frames[0] == ("daemon:new", {})


def _ack() -> str:
    payload = {"runtime_id": "r1", "server_capabilities": ["rpc-v1"]}
    return json.dumps({"type": protocol.FRAME_HEARTBEAT_ACK, "payload": payload})


async def _mute(connection: ServerConnection) -> None:
    await connection.wait_closed()


def _url(peer: Any) -> str:
    port = next(each for each in peer.sockets if each.family == sockets.AF_INET).getsockname()[1]
    return f"http://127.0.0.1:{port}"
