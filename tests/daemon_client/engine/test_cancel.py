"""What stops a running agent, what does not, and what is still reported then."""

from __future__ import annotations

import asyncio

import pytest

from daemon_client.agents.base import Emit, RunResult, RunSpec, Text, Usage
from daemon_client.protocol import ClaimedTask
from tests.daemon_client.engine.conftest import Rig, until_stopped
from tests.support.fake_server import FakeTask
from tests.support.wait import until_async

USAGE = Usage("claude", "m", input_tokens=1)


async def talkative(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
    emit(Text("before"))
    await stop.wait()
    emit(Text("last words"))
    return RunResult("cancelled", failure_reason="cancelled", usage=(USAGE,))


async def running(rig: Rig) -> FakeTask:
    task = rig.server.add_task()
    await rig.server.hint()
    await until_async(lambda: task.status == "running" and rig.bench.launched)
    return task


@pytest.mark.parametrize("status", ["cancelled", "failed", "completed"])
async def test_a_task_that_is_over_stops_its_agent(rig: Rig, status: str) -> None:
    """X-02, X-04, X-05, X-06, X-07, X-17: stopped, drained, usage told, acknowledged, result dropped."""
    rig.bench.script = talkative
    async with rig.daemon() as daemon:
        task = await running(rig)
        task.status = status
        at = daemon.ctx.clock.monotonic()
        await until_async(lambda: task.acks)
        assert daemon.ctx.clock.monotonic() - at < 5 + 60, "one poll, plus a slow machine at a fiftieth"
    assert task.status == status
    assert "".join(message["content"] for message in task.messages.values()) == "beforelast words"
    assert task.usage[0]["input_tokens"] == 1
    verbs = [each.verb for each in rig.server.of(task)]
    assert verbs.index("usage") < verbs.index("cancel-ack")
    assert not {"complete", "fail"} & set(verbs)
    assert rig.bench.finished == [(task.id, "cancelled")]


async def test_a_task_that_is_gone_stops_its_agent(rig: Rig) -> None:
    """X-08."""
    rig.bench.script = until_stopped
    async with rig.daemon():
        task = await running(rig)
        task.gone = True
        await rig.seen("cancel-ack")
        await until_async(lambda: rig.bench.finished)


@pytest.mark.parametrize(
    ("status", "body"),
    [(502, None), (500, None), (404, "<html>not found</html>"), (404, {"error": "not found"}), (401, None)],
)
async def test_other_trouble_stops_nothing(rig: Rig, status: int, body: object) -> None:
    """X-09: the status poll fails for ten minutes in every other way: the agent works on and its result counts."""
    go = asyncio.Event()

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        await go.wait()
        return RunResult("completed", output="survived") if not stop.is_set() else RunResult("cancelled")

    rig.bench.script = script
    fault = rig.server.fault("/status", times=10**6, status=status, body=body)
    async with rig.daemon():
        task = await running(rig)
        await until_async(lambda: fault.hits >= 10)
        go.set()
        await rig.ended(task, "completed")


async def test_a_reconnect_looks_at_once(rig: Rig) -> None:
    """X-03, O-09: with a poll every hour, a reconnect alone brings the cancel."""
    rig.bench.script = until_stopped
    async with rig.daemon(status_poll_interval=3600.0) as daemon:
        task = await running(rig)
        task.status = "cancelled"
        generation = daemon.listener.socket.generation
        await rig.server.cut_sockets()
        await until_async(lambda: task.acks)
        assert daemon.listener.socket.generation > generation


async def test_cancelled_before_the_agent_runs(rig: Rig) -> None:
    """X-16, X-18: the watch begins before the preparation; a wait inside of it is left at once."""

    async def waits(task: ClaimedTask) -> None:
        rig.server.tasks[task.id].status = "cancelled"
        await asyncio.Event().wait()

    rig.bench.on_prepare = waits
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: task.acks)
    assert not rig.bench.launched
    assert not rig.server.calls("start")


async def test_cancelled_between_start_and_first_output(rig: Rig) -> None:
    """X-18."""
    rig.bench.script = until_stopped
    rig.server.on_start = lambda task: setattr(task, "status", "cancelled")
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: task.acks)
    assert not {"complete", "fail"} & {each.verb for each in rig.server.of(task)}


async def test_cancelled_in_the_last_moment(rig: Rig) -> None:
    """X-06: finished here, cancelled there meanwhile: the result is dropped, the cancel acknowledged."""

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        rig.server.tasks[spec.env["MULTICA_TASK_ID"]].status = "cancelled"
        return RunResult("completed", output="too late", usage=(USAGE,))

    rig.bench.script = script
    async with rig.daemon(status_poll_interval=3600.0):
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: task.acks)
    assert not task.result
    assert task.usage


async def test_an_agent_that_does_not_stop_is_given_up(rig: Rig) -> None:
    """X-15: the slot comes back and the server hears the end even if an adapter hangs."""

    async def stubborn(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        await asyncio.Event().wait()
        raise AssertionError

    rig.bench.script = stubborn
    async with rig.daemon(stop_grace=1) as daemon:
        task = await running(rig)
        task.status = "cancelled"
        await until_async(lambda: task.acks)
        await until_async(lambda: daemon.ctx.slots.free == daemon.ctx.slots.total)


async def test_the_ack_survives_an_outage(rig: Rig) -> None:
    """X-06, D10: the acknowledgement is an ending like any other."""
    rig.bench.script = talkative
    rig.server.fault("cancel-ack", times=2, status=503)
    async with rig.daemon():
        task = await running(rig)
        task.status = "cancelled"
        await until_async(lambda: task.acks)
    assert len(rig.server.calls("cancel-ack")) == 3
