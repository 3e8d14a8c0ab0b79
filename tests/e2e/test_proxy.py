"""The proxy itself: a harness that does not fail connections as it says would prove nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage
from websockets.sync.client import connect
from websockets.sync.server import Server, ServerConnection, serve

from tests.support.frames import FrameReader
from tests.support.proxy import Proxy
from tests.support.waits import until

LARGE = "x" * 70_000


@pytest.fixture
def upstream() -> Iterator[int]:
    """A WebSocket server that answers each message with `re:` and the message; its port."""

    def echo(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            for message in connection:
                connection.send(f"re:{message}")

    with serve(echo, "127.0.0.1", 0, compression=None) as server:
        thread = _run(server)
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join(timeout=5)


def _run(server: Server) -> threading.Thread:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def proxy(upstream: int) -> Iterator[Proxy]:
    with Proxy(upstream) as running:
        yield running


def address(proxy: Proxy) -> str:
    return f"ws://127.0.0.1:{proxy.port}/api/daemon/ws"


def test_passes_and_reads_frames_of_both_directions(proxy: Proxy) -> None:
    with connect(address(proxy), compression=None) as client:
        client.send("hello")
        client.send(LARGE)
        assert client.recv() == "re:hello"
        assert client.recv() == f"re:{LARGE}"
    assert [unit.text for unit in proxy.units if unit.websocket and unit.text in ("hello", LARGE)] == ["hello", LARGE]
    assert len(proxy.seen("re:", down=True)) == 2
    assert proxy.connections == 1
    assert proxy.bytes_down > 70_000


def test_trap_cuts_before_the_matching_frame_reaches_the_client(proxy: Proxy) -> None:
    trap = proxy.trap(lambda unit: unit.down and unit.text == "re:b")
    with connect(address(proxy), compression=None) as client:
        client.send("a")
        assert client.recv() == "re:a"
        client.send("b")
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=5)
    assert trap.wait().text == "re:b"
    with connect(address(proxy), compression=None) as client:
        client.send("b")
        assert client.recv(timeout=5) == "re:b", "a trap catches once"


def test_trap_that_forwards_lets_the_frame_through_and_then_cuts(proxy: Proxy) -> None:
    proxy.trap(lambda unit: unit.down and unit.text == "re:b", forward=True)
    with connect(address(proxy), compression=None) as client:
        client.send("b")
        assert client.recv(timeout=5) == "re:b"
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=5)


def test_down_refuses_and_up_serves_on_the_same_port(proxy: Proxy) -> None:
    with connect(address(proxy), compression=None) as client:
        proxy.down()
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=5)
    with pytest.raises(ConnectionRefusedError):
        connect(address(proxy), compression=None)
    port = proxy.port
    proxy.up()
    assert proxy.port == port
    with connect(address(proxy), compression=None) as client:
        client.send("a")
        assert client.recv(timeout=5) == "re:a"


def test_hold_keeps_the_connection_open_and_passes_nothing_until_released(proxy: Proxy) -> None:
    with connect(address(proxy), compression=None) as client:
        client.send("a")
        assert client.recv(timeout=5) == "re:a"
        proxy.hold()
        client.send("b")
        with pytest.raises(TimeoutError):
            client.recv(timeout=0.2)
        proxy.release()
        assert client.recv(timeout=5) == "re:b"


def test_hold_present_spares_new_connections(proxy: Proxy) -> None:
    with connect(address(proxy), compression=None, close_timeout=0.2) as dead:
        proxy.hold_present()
        with connect(address(proxy), compression=None) as fresh:
            fresh.send("a")
            assert fresh.recv(timeout=5) == "re:a"
        dead.send("b")
        with pytest.raises(TimeoutError):
            dead.recv(timeout=0.2)


def test_trap_that_holds_forwards_one_frame_and_then_nothing(proxy: Proxy) -> None:
    trap = proxy.trap(lambda unit: unit.down and unit.text == "re:a", hold=True)
    with connect(address(proxy), compression=None) as client:
        client.send("a")
        assert client.recv(timeout=5) == "re:a"
        assert trap.sprung
        client.send("b")
        with pytest.raises(TimeoutError):
            client.recv(timeout=0.2)
        proxy.release()
        assert client.recv(timeout=5) == "re:b"


def test_cut_after_bytes_forwards_that_many_and_no_more(proxy: Proxy) -> None:
    proxy.cut_after(5, down=False)
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.sendall(b"GET /long HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            assert client.recv(100) == b""
    until(lambda: proxy.bytes_up == 5, 5)


def test_refused_websocket_is_a_failed_handshake(proxy: Proxy) -> None:
    proxy.refuse_websocket = True
    with pytest.raises((InvalidHandshake, InvalidMessage, ConnectionClosed, OSError)):
        connect(address(proxy), compression=None)


def test_retarget_moves_to_another_backend(proxy: Proxy, upstream: int) -> None:
    proxy.retarget(1)
    with pytest.raises((InvalidHandshake, InvalidMessage, ConnectionClosed, OSError)):
        connect(address(proxy), compression=None)
    assert proxy.refused == 1
    proxy.retarget(upstream)
    with connect(address(proxy), compression=None) as client:
        client.send("a")
        assert client.recv(timeout=5) == "re:a"


def test_frames_are_found_whatever_the_chunks_are() -> None:
    stream = b"\x81\x82\x01\x02\x03\x04\x69\x6b" + b"\x89\x00" + b"\x81\x7e\x01\x00" + b"y" * 256
    reader = FrameReader()
    found = [text for index in range(len(stream)) for _, text in reader.feed(stream[index : index + 1])]
    assert found == ["hi", "", "y" * 256]
