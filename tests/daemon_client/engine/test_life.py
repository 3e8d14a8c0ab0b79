"""Start, registration, heartbeats, recovery from a dropped runtime, graceful stop."""

from __future__ import annotations

import asyncio
import os

import pytest

from daemon_client.agents.base import Emit, RunResult, RunSpec
from daemon_client.clock import ManualClock
from daemon_client.engine.signals import ReconcileBroadcaster, Wake
from daemon_client.engine.supervisor import Daemon
from daemon_client.errors import AlreadyRunning, HttpError, NotAuthenticated
from tests.daemon_client.engine.conftest import Rig, done, until_stopped
from tests.support.fake_server import FakeTask
from tests.support.wait import until_async


async def running(rig: Rig) -> FakeTask:
    task = rig.server.add_task()
    await rig.server.hint()
    await until_async(lambda: task.status == "running" and task.id in rig.bench.launched)
    return task


# --- start ---


async def test_the_order_of_a_start(rig: Rig) -> None:
    """D-18, O-01: token, list, profiles, register, recovery, and only then claims and the socket."""
    async with rig.daemon():
        await until_async(rig.server.claims)
    verbs = [each.verb for each in rig.server.seen]
    order = ["renew", "workspaces", "runtime-profiles", "register", "recover-orphans"]
    assert verbs[:5] == order
    assert verbs.count("recover-orphans") == 1
    assert rig.server.calls("deregister")[0].body == {"runtime_ids": rig.server.runtime_ids()}


async def test_two_starts_send_equal_registrations(rig: Rig) -> None:
    """D-06."""
    rig.bench.providers = ("claude", "plain")
    for _ in range(2):
        async with rig.daemon():
            pass
        rig.bench.providers = rig.bench.providers[::-1]
    first, second = rig.server.calls("register")
    assert first.body == second.body
    assert [each["type"] for each in first.body["runtimes"]] == ["claude", "plain"]
    assert first.body["failed_profiles"] is None


async def test_a_refused_token_ends_the_start(rig: Rig) -> None:
    rig.server.token = "mul_other"
    with pytest.raises(NotAuthenticated):
        async with rig.daemon():
            pass


async def test_a_refused_list_ends_the_start(rig: Rig) -> None:
    rig.server.fault("/api/daemon/workspaces", status=403)
    with pytest.raises(HttpError):
        async with rig.daemon():
            pass


async def test_a_server_that_is_not_up_yet_is_waited_for(rig: Rig) -> None:
    """A machine that boots before its server must not need a second start."""
    rig.server.unreachable = True
    async with rig.daemon(ready=False) as daemon:
        await until_async(lambda: daemon.local.health()["status"] == "starting")
        rig.server.unreachable = False
        await until_async(daemon.ready.is_set)


async def test_stopped_while_it_still_waits_for_the_server(rig: Rig) -> None:
    rig.server.unreachable = True
    async with rig.daemon(ready=False):
        await until_async(lambda: "kill survivors" in rig.bench.events)


async def test_nothing_to_register_is_said(rig: Rig) -> None:
    rig.bench.providers = ()
    with pytest.raises(Exception, match="no coding agent was found"):
        async with rig.daemon():
            pass


async def test_a_second_daemon_is_refused_with_the_first_ones_pid(rig: Rig) -> None:
    """Same profile: the lock. Other profile on the same port: the port."""
    async with rig.daemon() as daemon:
        with pytest.raises(AlreadyRunning) as caught:
            async with rig.daemon():
                pass
        assert caught.value.pid == os.getpid()
        with pytest.raises(AlreadyRunning) as caught:
            async with rig.daemon(home=rig.folder / "other", health_port=daemon.ctx.port):
                pass
        assert caught.value.pid == os.getpid()
    async with rig.daemon():
        pass


async def test_profiles(rig: Rig) -> None:
    """D-08, D-09, D-10: what resolves is registered with its id, the rest is named; no profile route is no error."""
    rig.server.profiles = [
        {"id": "p1", "protocol_family": "plain", "command_name": "fixer", "enabled": True},
        {"id": "p2", "protocol_family": "plain", "command_name": "missing", "enabled": True},
        {"id": "p3", "protocol_family": "martian", "command_name": "fixer", "enabled": True},
        {"id": "p4", "protocol_family": "plain", "command_name": "fixer", "enabled": False},
    ]
    async with rig.daemon():
        (call,) = rig.server.calls("register")
    assert [each.get("profile_id") for each in call.body["runtimes"]] == [None, "p1"]
    assert [each["profile_id"] for each in call.body["failed_profiles"]] == ["p2", "p3"]
    rig.server.fault("runtime-profiles", times=99, status=404)
    async with rig.daemon():
        pass


async def test_a_changed_profile_registers_again_without_recovery(rig: Rig) -> None:
    """W-15, D-11, D-12, O-03: once for a change, not at all for a notice without one, and never with recovery."""
    rig.bench.script = until_stopped
    async with rig.daemon() as daemon:
        task = await running(rig)
        await until_async(lambda: daemon.listener.socket.connected)
        for _ in range(100):
            await rig.server.push("daemon:runtime_profiles_changed", {"workspace_id": rig.server.workspace_id})
        await rig.seen("runtime-profiles", 3)
        assert len(rig.server.calls("register")) == 1
        rig.server.profiles = [{"id": "p1", "protocol_family": "plain", "command_name": "fixer", "enabled": True}]
        await rig.server.push("daemon:runtime_profiles_changed", {"workspace_id": rig.server.workspace_id})
        await rig.seen("register", 2)
        await until_async(lambda: len(daemon.ctx.index.claimable_ids()) == 2)
        assert task.status == "running"
        assert len(rig.server.calls("recover-orphans")) == 1
        assert len(rig.server.calls("runtime-profiles")) < 60


async def test_workspaces_come_and_go(rig: Rig) -> None:
    """D-07, D-21: a push, one list, one registration for the new one, none for the old."""
    async with rig.daemon() as daemon:
        await until_async(lambda: daemon.listener.socket.connected)
        rig.server.workspaces.append({"id": "w2", "name": "Second"})
        await rig.server.push("daemon:workspaces_changed", {})
        await until_async(lambda: len(daemon.ctx.index.claimable_ids()) == 2)
        del rig.server.workspaces[0]
        await until_async(lambda: rig.server.sockets)
        await rig.server.push("daemon:workspaces_changed", {})
        await until_async(lambda: list(daemon.ctx.index.workspaces) == ["w2"])
    assert [each.body["workspace_id"] for each in rig.server.calls("register")].count("w2") == 1


async def test_one_workspace_that_fails_leaves_the_others(rig: Rig) -> None:
    rig.server.workspaces.append({"id": "w2", "name": "Second"})
    rig.server.fault("/register", status=500)
    async with rig.daemon() as daemon:
        assert len(daemon.ctx.index.runtime_ids()) == 1
        await until_async(lambda: len(daemon.ctx.index.runtime_ids()) == 2)


async def test_an_old_server_lists_workspaces_elsewhere(rig: Rig) -> None:
    rig.server.fault("/api/daemon/workspaces$", times=99, status=404)
    async with rig.daemon() as daemon:
        assert daemon.ctx.index.runtime_ids()


async def test_the_token_is_renewed_every_three_days(rig: Rig) -> None:
    """TK-01, the daemon's half; a failed renewal changes nothing and the next one comes."""
    clock = ManualClock()
    daemon = Daemon(rig.settings, clock=clock, workbench=lambda _: rig.bench)
    rig.server.fault("renew", status=401)
    for count in (1, 2):
        renewal = asyncio.create_task(daemon._renewal_once())
        await clock.advance(72 * 3600 - 1)
        assert len(rig.server.calls("renew")) == count - 1
        await clock.advance(2)
        await renewal
        assert len(rig.server.calls("renew")) == count
    await daemon.ctx.api.http.close()


# --- heartbeats ---


async def test_heartbeats_go_over_http_only_without_fresh_acks(rig: Rig) -> None:
    """D-22: acknowledged on the socket, none over HTTP; acknowledgements stop, HTTP takes over."""
    async with rig.daemon():
        await rig.seen("daemon:heartbeat", 4)
        assert not rig.server.calls("heartbeat", "POST")
        rig.server.ack_heartbeats = False
        await until_async(lambda: rig.server.calls("heartbeat", "POST"))


async def test_what_a_heartbeat_says(rig: Rig) -> None:
    """D10: held tasks with their tokens, a growing number, one incarnation a process, and the slots."""
    rig.bench.script = until_stopped
    rig.server.accept_sockets = False
    async with rig.daemon(max_concurrent_tasks=3) as daemon:
        await rig.seen("heartbeat", 1)
        task = rig.server.add_task()
        await until_async(lambda: task.status == "running")
        count = len(rig.server.calls("heartbeat"))
        await rig.seen("heartbeat", count + 2)
        incarnation = daemon.heartbeats.compose("x")["incarnation"]
    beats = [each.body for each in rig.server.calls("heartbeat")]
    assert beats[0]["active_tasks"] == []
    assert beats[-1]["active_tasks"] == [{"task_id": task.id, "claim_token": task.token}]
    assert beats[-1]["slots"] == {"total": 3, "free": 2}
    assert [each["seq"] for each in beats] == sorted({each["seq"] for each in beats})
    assert {each["incarnation"] for each in beats} == {incarnation}
    async with rig.daemon() as daemon:
        assert daemon.heartbeats.compose("x")["incarnation"] > incarnation


async def test_one_slow_heartbeat_delays_no_other(rig: Rig) -> None:
    """D-20: one runtime's heartbeat hangs for ever; the other one's go on."""
    rig.bench.providers = ("claude", "plain")
    rig.server.accept_sockets = False
    async with rig.daemon():
        slow, quick = rig.server.runtime_ids()
        hold = asyncio.Event()
        rig.server.slow_heartbeats = {slow: hold}
        await until_async(lambda: [each.body["runtime_id"] for each in rig.server.calls("heartbeat")].count(quick) >= 4)
        assert [each.body["runtime_id"] for each in rig.server.calls("heartbeat")].count(slow) <= 2
        hold.set()


async def test_requests_of_the_server_are_answered(rig: Rig) -> None:
    """A model list that nobody answers leaves somebody in front of a spinner."""
    async with rig.daemon():
        runtime = rig.server.runtime_ids()[0]
        rig.server.ack_extra = {"pending_model_list": {"id": "m1"}, "pending_update": {"id": "u1"}}
        await rig.server.push("daemon:pending_work", {"runtime_id": runtime, "kind": "model_list"})
        await rig.seen("result", 2)
        rig.server.ack_extra = {}
    assert {each.path.split("/")[-3] for each in rig.server.calls("result")} == {"models", "update"}


# --- runtimes that the server has dropped ---


@pytest.mark.parametrize("way", ["http", "socket"])
async def test_a_dropped_runtime_is_registered_again(rig: Rig, way: str) -> None:
    """O-02: new id, recovery for it, and claims for it."""
    rig.server.accept_sockets = way == "socket"
    async with rig.daemon() as daemon:
        old = rig.server.runtime_ids()[0]
        rig.server.runtimes.clear()
        if way == "socket":
            await until_async(lambda: rig.server.sockets)
            await rig.server.push("daemon:heartbeat_ack", {"runtime_id": old, "runtime_gone": True})
        await rig.seen("register", 2)
        await until_async(lambda: daemon.ctx.index.claimable_ids() == rig.server.runtime_ids())
        task = rig.server.add_task()
        await rig.ended(task, "completed")
    assert old not in rig.server.runtime_ids()
    paths = [each.path for each in rig.server.calls("recover-orphans")]
    assert rig.server.runtime_ids()[0] in paths[-1]


async def test_a_false_alarm_kills_no_running_work(rig: Rig) -> None:
    """Trap 15: the same runtime id comes back while its task runs here: it is not recovered."""
    rig.bench.script = until_stopped
    async with rig.daemon() as daemon:
        task = await running(rig)
        daemon.recovery.gone(task.runtime_id)
        await rig.seen("register", 2)
        await until_async(lambda: daemon.ctx.index.claimable_ids())
        assert task.status == "running"
    assert len(rig.server.calls("recover-orphans")) == 1


# --- stop ---


async def test_a_stop_hands_running_tasks_back(rig: Rig) -> None:
    """The agent is stopped, the server is told a reason that it retries, then the runtimes are signed off."""
    rig.bench.script = until_stopped
    async with rig.daemon():
        task = await running(rig)
    assert task.status == "failed"
    assert task.result["failure_reason"] == "runtime_recovery"
    verbs = [each.verb for each in rig.server.seen]
    assert verbs.index("fail") < verbs.index("deregister")


async def test_a_drain_lets_them_end(rig: Rig) -> None:
    go = asyncio.Event()

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        await go.wait()
        return await done(spec, emit, stop)

    rig.bench.script = script
    async with rig.daemon() as daemon:
        task = await running(rig)
        waiting = rig.server.add_task()
        daemon.request_stop(3600)
        await rig.server.hint()
        go.set()
        await rig.ended(task, "completed")
    assert waiting.status == "queued"


async def test_a_second_request_hurries(rig: Rig) -> None:
    rig.bench.script = until_stopped
    async with rig.daemon() as daemon:
        task = await running(rig)
        daemon.request_stop(3600)
        await until_async(lambda: daemon.poller.stopped)
        assert task.status == "running"
    assert task.status == "failed"


async def test_a_claim_under_way_at_the_stop_is_handed_back(rig: Rig) -> None:
    rig.server.accept_sockets = False
    rig.bench.script = until_stopped
    async with rig.daemon() as daemon:
        hold = asyncio.Event()
        await until_async(lambda: rig.server.claims() and not daemon.ctx.barrier.in_flight)
        rig.server.fault("tasks/claim", hold=hold)
        task = rig.server.add_task()
        await until_async(lambda: rig.server.faults[-1].hits)
        daemon.request_stop(0)
        await until_async(lambda: daemon.poller.stopped)
        hold.set()
        await rig.ended(task, "failed")
    assert task.result["failure_reason"] == "runtime_recovery"


async def test_no_loop_dies_of_an_error(rig: Rig) -> None:
    async with rig.daemon() as daemon:
        loop = daemon.loops["workspace-sync"]
        loop.run_once = _broken
        loop.wake.set()
        await until_async(lambda: _broken.calls >= 2, what="a second round after the error")  # type: ignore[attr-defined]
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "completed")
        assert set(daemon.local.health()["loops"]) >= {"poller", "workspace-sync", "outbox", "socket", "token-renewal"}


async def _broken() -> float:
    _broken.calls += 1  # type: ignore[attr-defined]
    raise RuntimeError("bug")


_broken.calls = 0  # type: ignore[attr-defined]


# --- the reconcile broadcast ---


async def test_a_broadcast_before_anybody_listens_is_kept_once() -> None:
    """O-10."""
    clock = ManualClock()
    cast = ReconcileBroadcaster(clock)
    cast.request()
    job = asyncio.create_task(cast.run_once())
    await clock.advance(2)
    await job
    with cast.subscribe() as first, cast.subscribe() as second:
        assert await first.wait(0.1, clock) is True
        late = asyncio.create_task(second.wait(0.1, clock))
        await clock.advance(1)
        assert await late is False


async def test_a_flapping_socket_causes_no_storm() -> None:
    """O-11: 100 requests in 10 s: at most 11 deliveries, the last of them after the last request."""
    clock = ManualClock()
    cast = ReconcileBroadcaster(clock)
    heard: list[float] = []

    async def listen() -> None:
        with cast.subscribe() as wake:
            while True:
                await wake.wait(None, clock)
                heard.append(clock.monotonic())

    async def deliver() -> None:
        while True:
            await cast.run_once()

    jobs = [asyncio.create_task(listen()), asyncio.create_task(deliver())]
    for _ in range(100):
        await clock.advance(0.1)
        cast.request()
    last = clock.monotonic()
    await clock.advance(5)
    assert len(heard) <= 12
    assert heard[-1] >= last
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)


async def test_a_wake_collapses_bursts() -> None:
    clock = ManualClock()
    wake = Wake()
    for _ in range(5):
        wake.set()
    assert await wake.wait(1, clock)
    second = asyncio.create_task(wake.wait(1, clock))
    await clock.advance(2)
    assert not await second
