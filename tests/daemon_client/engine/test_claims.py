"""Who claims what, when, and over which way; above all when nothing may be claimed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from daemon_client import protocol
from daemon_client.agents.base import Emit, RunResult, RunSpec
from daemon_client.clock import ManualClock
from daemon_client.engine.claimer import Claimer
from daemon_client.errors import HttpError, RpcRejected, RpcUnavailable, RpcUncertain, TransportError
from daemon_client.protocol import Json
from daemon_client.transport.http import HttpClient, ServerApi
from daemon_client.transport.rpc import RpcClient
from tests.daemon_client.engine.conftest import Rig, until_stopped
from tests.support.fake_server import TOKEN, FakeServer
from tests.support.wait import until_async

RUNTIMES = ["r1", "r2"]


class ScriptedRpc(RpcClient):
    """Calls whose outcome is decided here; what each outcome means is the claimer's business."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.outcome: Exception | Json = RpcUnavailable("no socket")
        self.calls = 0

    async def call(self, method: str, body: Json, timeout: float) -> Json:
        self.calls += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Desk:
    def __init__(self, server: FakeServer) -> None:
        self.server, self.clock = server, ManualClock()
        self.rpc = ScriptedRpc(self.clock)
        self.http = HttpClient(server.url, TOKEN, self.clock)
        self.claimer = Claimer("d1", ServerApi(self.http), self.rpc, self.clock)

    async def claim(self, most: int = 3) -> list[str]:
        return [task.id for task in await self.claimer.claim(RUNTIMES, most)]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with FakeServer() as server:
        desk = Desk(server)
        yield desk
        await desk.http.close()


async def test_one_call_for_all_runtimes(desk: Desk) -> None:
    """C-22: three slots, one request that names every runtime and asks for three."""
    await desk.claim(3)
    (call,) = desk.server.claims()
    assert call.body["runtime_ids"] == RUNTIMES
    assert call.body["max_tasks"] == 3
    assert call.body["daemon_id"] == "d1"
    assert call.body["timeout_ms"] == 5000


async def test_the_socket_is_used_when_it_works(desk: Desk) -> None:
    """P-09 row 1."""
    desk.rpc.outcome = {"tasks": [{"id": "t1"}]}
    assert await desk.claim() == ["t1"]
    assert not desk.server.claims()


@pytest.mark.parametrize("outcome", [RpcUnavailable("x"), RpcRejected(503, "x"), RpcRejected(200, "unreadable")])
async def test_surely_unsent_or_refused_goes_to_http_at_once(desk: Desk, outcome: Exception) -> None:
    """W-07, W-08, P-09 rows 2 and 3."""
    desk.rpc.outcome = outcome
    task = desk.server.add_task("r1")
    assert await desk.claim() == [task.id]


async def test_an_uncertain_claim_is_not_repeated(desk: Desk) -> None:
    """W-09, W-10: nothing for 7 s over any way, then HTTP once, then the socket again."""
    desk.rpc.outcome = RpcUncertain("cut")
    desk.server.add_task("r1")
    assert await desk.claim() == []
    await desk.clock.advance(6.9)
    assert await desk.claim() == []
    assert (desk.rpc.calls, len(desk.server.claims())) == (1, 0)
    await desk.clock.advance(0.2)
    assert len(await desk.claim()) == 1
    assert (desk.rpc.calls, len(desk.server.claims())) == (1, 1)
    await desk.claim()
    assert desk.rpc.calls == 2


async def test_an_http_claim_without_answer_is_uncertain_too(desk: Desk) -> None:
    """C-26: the server may have acted; asking again at once could take a second task for the same slot."""
    desk.server.fault("claim", drop_after=True)
    task = desk.server.add_task("r1")
    with pytest.raises(TransportError):
        await desk.claim()
    assert task.status == "dispatched"
    assert desk.claimer.blocked_for == protocol.UNCERTAIN_WINDOW
    assert await desk.claim() == []
    assert len(desk.server.claims()) == 1


async def test_a_refused_connection_begins_no_window(desk: Desk) -> None:
    desk.claimer._api.http.base_url = "http://127.0.0.1:9"
    with pytest.raises(TransportError):
        await desk.claim()
    assert not desk.claimer.blocked_for


async def test_a_claim_gives_up_after_five_seconds(desk: Desk) -> None:
    """C-24: and says nothing about the other calls' 30 s."""
    desk.server.fault("claim", hold=asyncio.Event())
    claim = asyncio.create_task(desk.claim())
    await until_async(lambda: desk.server.claims())
    await desk.clock.advance(4.9)
    assert not claim.done()
    await desk.clock.advance(0.2)
    with pytest.raises(TransportError):
        await claim


@pytest.mark.parametrize("fault", ["drop", "drop_after", "status", "timeout"])
async def test_no_fault_leads_to_two_deliveries_of_one_task(desk: Desk, fault: str) -> None:
    """C-26: whatever happens between request and answer, one task is delivered at most once."""
    options = {"timeout": {"hold": asyncio.Event()}, "status": {"status": 502}}.get(fault, {fault: True})
    desk.server.fault("claim", **options)
    task = desk.server.add_task("r1")
    got: list[str] = []
    for _ in range(4):
        claim = asyncio.create_task(desk.claim())
        await until_async(lambda c=claim: c.done() or desk.server.faults[0].hits)
        while not claim.done():
            await desk.clock.advance(1)
        if claim.exception() is None:
            got += claim.result()
        await desk.clock.advance(2)
    assert len(got) <= 1
    assert len(task.tokens) <= 1


# --- old servers ---


async def test_a_server_without_batch_claim() -> None:
    """C-29, C-30, C-28: one 404, then runtime by runtime in the same round; a connect tries the batch again."""
    async with FakeServer(batch=False) as server:
        desk = Desk(server)
        first, second = server.add_task("r1"), server.add_task("r2")
        assert await desk.claim() == [first.id, second.id]
        assert await desk.claim() == []
        batch = [each for each in server.claims() if each.path == protocol.ROUTE_CLAIM]
        assert len(batch) == 1
        desk.claimer.on_connect()
        await desk.claim()
        batch = [each for each in server.claims() if each.path == protocol.ROUTE_CLAIM]
        assert len(batch) == 2
        await desk.http.close()


async def test_one_runtimes_error_keeps_what_was_claimed() -> None:
    """C-28: the second runtime fails; the first one's task is still returned."""
    async with FakeServer(batch=False) as server:
        desk = Desk(server)
        server.fault("runtimes/r2/", times=9, status=500)
        task = server.add_task("r1")
        assert await desk.claim() == [task.id]
        with pytest.raises(HttpError):
            await desk.claim()
        await desk.http.close()


async def test_old_claims_stop_at_the_slots() -> None:
    async with FakeServer(batch=False) as server:
        desk = Desk(server)
        for _ in range(5):
            server.add_task("r1")
        assert len(await desk.claim(2)) == 2
        await desk.http.close()


# --- with a whole daemon ---


async def test_two_providers_one_claim_stream(rig: Rig) -> None:
    """C-27, P-01: two runtimes on one daemon, one poller, each request names both."""
    rig.bench.providers = ("claude", "plain")
    async with rig.daemon():
        assert len(rig.server.runtimes) == 2
        await until_async(rig.server.claims)
    assert {tuple(each.body["runtime_ids"]) for each in rig.server.claims()} == {
        tuple(sorted(rig.server.runtime_ids()))
    }


async def test_no_slot_no_claim(rig: Rig) -> None:
    """P-02, P-06, L-23: with every slot busy nothing is asked for or dispatched; a freed slot claims at once."""
    go = asyncio.Event()

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        await go.wait()
        return RunResult("completed")

    rig.bench.script = script
    async with rig.daemon(max_concurrent_tasks=2, poll_interval=10):
        tasks = [rig.server.add_task() for _ in range(3)]
        await rig.server.hint()
        await until_async(lambda: [each.status for each in tasks].count("running") == 2)
        before = len(rig.server.claims())
        for _ in range(10):
            await rig.server.hint()
        await rig.seen("status", 6)
        assert tasks[2].status == "queued"
        assert len(rig.server.claims()) == before
        go.set()
        for task in tasks:
            await rig.ended(task, "completed")
    assert all(each.body["max_tasks"] <= 2 for each in rig.server.claims())


async def test_the_request_asks_for_the_slots_that_are_held(rig: Rig) -> None:
    """P-03, P-05."""
    rig.bench.script = until_stopped
    async with rig.daemon(max_concurrent_tasks=3):
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: task.status == "running")
        count = len(rig.server.claims())
        await rig.server.hint()
        await until_async(lambda: len(rig.server.claims()) > count)
        assert rig.server.claims()[-1].body["max_tasks"] == 2


async def test_a_closed_barrier_claims_nothing(rig: Rig) -> None:
    """P-04, U-05: slots go back, no request leaves."""
    async with rig.daemon() as daemon:
        await until_async(lambda: rig.server.claims() and not daemon.ctx.barrier.in_flight)
        assert daemon.ctx.barrier.try_pause(len(daemon.ctx.active))
        before = len(rig.server.claims())
        assert await daemon.poller.run_once() > 0
        assert len(rig.server.claims()) == before
        assert daemon.ctx.slots.free == daemon.ctx.slots.total
        daemon.ctx.barrier.resume()
        await daemon.poller.run_once()
        assert len(rig.server.claims()) > before


async def test_surplus_tasks_are_left_to_redelivery(rig: Rig) -> None:
    async with rig.daemon(max_concurrent_tasks=1):
        tasks = [rig.server.add_task() for _ in range(3)]
        rig.server.deliver = lambda ids, most: FakeServer.deliver(rig.server, ids, 99)  # type: ignore[method-assign]
        await rig.server.hint()
        await rig.ended(tasks[0], "completed")
        await rig.server.hint()
    assert rig.bench.launched == [tasks[0].id]


async def test_the_socket_carries_claims_once_negotiated(rig: Rig) -> None:
    """W-04, W-01: claims, heartbeats and hints on one connection."""
    async with rig.daemon() as daemon:
        await until_async(lambda: daemon.listener.socket.negotiated("rpc-v1"))
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "completed")
    assert [each for each in rig.server.claims() if each.method == "RPC"]


@pytest.mark.parametrize("sockets", ["none", "without rpc"])
async def test_http_alone_is_enough(rig: Rig, sockets: str) -> None:
    """W-05, W-17, P-07: no socket, or one that negotiates nothing: polling and HTTP heartbeats do everything."""
    rig.server.accept_sockets = sockets != "none"
    rig.server.capabilities = ()
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.ended(task, "completed")
        if sockets == "none":
            await rig.seen("heartbeat")
    assert not [each for each in rig.server.claims() if each.method == "RPC"]


async def test_a_cut_socket_claims_no_second_time(rig: Rig) -> None:
    """W-09, W-11: cut after the commit: no claim in the window, the other task waits, each is launched once."""
    async with rig.daemon(max_concurrent_tasks=1) as daemon:
        await until_async(lambda: daemon.listener.socket.negotiated("rpc-v1") and not daemon.ctx.barrier.in_flight)
        first, second = rig.server.add_task(), rig.server.add_task()
        rig.server.rpc_mode = "cut"
        before = len(rig.server.claims())
        await rig.server.hint()
        await until_async(lambda: daemon.claimer.blocked_for)
        ends = daemon.ctx.clock.monotonic() + daemon.claimer.blocked_for
        rig.server.rpc_mode = "answer"
        assert first.status == "dispatched"
        await until_async(lambda: daemon.listener.socket.connected)
        await until_async(lambda: len(rig.server.claims()) > before + 1)
        assert daemon.ctx.clock.monotonic() >= ends
        assert rig.server.claims()[before + 1].method == "POST"
        await rig.ended(second, "completed")
        rig.server.redeliver(first)
        await rig.server.hint()
        await rig.ended(first, "completed")
    assert sorted(rig.bench.launched) == sorted([first.id, second.id])


async def test_a_claim_that_committed_but_timed_out_runs_once(rig: Rig) -> None:
    """C-25: the answer is lost, the server delivers again later, under a new token: one launch, by that delivery."""
    rig.server.accept_sockets = False
    async with rig.daemon() as daemon:
        await until_async(lambda: rig.server.claims() and not daemon.ctx.barrier.in_flight)
        rig.server.fault("tasks/claim", drop_after=True)
        task = rig.server.add_task()
        await until_async(lambda: task.status == "dispatched")
        rig.server.redeliver(task)
        await rig.ended(task, "completed")
    assert rig.bench.launched == [task.id]
    assert task.started_with == [task.tokens[1]]


async def test_a_socket_bound_to_old_runtimes_is_dialled_again(rig: Rig) -> None:
    """The set of runtimes changes while the handshake is under way: the server must not know this daemon by old ids."""
    hold = asyncio.Event()
    rig.server.fault("daemon/ws", hold=hold)
    async with rig.daemon() as daemon:
        await rig.seen("ws")
        rig.server.workspaces.append({"id": "w2", "name": "Second"})
        await daemon.sync.sync()
        hold.set()
        await until_async(lambda: daemon.listener.socket.negotiated("rpc-v1"))
    assert rig.server.calls("ws")[-1].query["runtime_ids"] == ",".join(sorted(rig.server.runtime_ids()))


async def test_a_flood_of_hints_blocks_nothing(rig: Rig) -> None:
    """W-02: 10,000 pushes while a task prepares: heartbeats go on, the flood collapses into few claims."""
    go = asyncio.Event()

    async def slow(_: object) -> None:
        await go.wait()

    rig.bench.on_prepare = slow  # type: ignore[assignment]
    async with rig.daemon(max_concurrent_tasks=2) as daemon:
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: rig.bench.events.count("prepare"))
        before = len(rig.server.claims())
        for _ in range(10_000):
            await rig.server.hint()
        rig.server.capabilities = ("rpc-v1", "after-the-flood")
        ack = {"runtime_id": task.runtime_id, "server_capabilities": ["rpc-v1", "after-the-flood"]}
        await rig.server.push(protocol.FRAME_HEARTBEAT_ACK, ack)
        await until_async(lambda: daemon.listener.socket.negotiated("after-the-flood"), 5)
        beats = len(rig.server.calls("daemon:heartbeat"))
        await until_async(lambda: len(rig.server.calls("daemon:heartbeat")) > beats)
        assert len(rig.server.claims()) - before < 2_000
        go.set()
        await rig.ended(task, "completed")


async def test_thirty_two_large_tasks_in_one_answer(rig: Rig) -> None:
    """C-23: 32 tasks with large bodies over the socket, all of them run."""
    async with rig.daemon(max_concurrent_tasks=40) as daemon:
        await until_async(lambda: daemon.listener.socket.negotiated("rpc-v1") and not daemon.ctx.barrier.in_flight)
        tasks = [rig.server.add_task(handoff_note="x" * 200_000) for _ in range(40)]
        await rig.server.hint()
        for task in tasks:
            await rig.ended(task, "completed")
    asked = [each.body["max_tasks"] for each in rig.server.claims()]
    assert max(asked) == 32
