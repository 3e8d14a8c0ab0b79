"""No ending is lost: not when the server is away, not when the daemon dies, and none is told twice or turned around."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemon_client.agents.base import Emit, RunResult, RunSpec, SessionStarted, Text, Usage
from daemon_client.clock import ManualClock
from daemon_client.engine.outbox import PATIENCE, Ending, Outbox, is_final
from daemon_client.errors import HttpError, TransportError
from daemon_client.transport.http import HttpClient, ServerApi
from tests.daemon_client.engine.conftest import Rig, done
from tests.support.fake_server import TOKEN, FakeServer, FakeTask
from tests.support.wait import until_async

USAGE = Usage("claude", "m", input_tokens=1)


async def thorough(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
    emit(SessionStarted("s-1"))
    emit(Text("words"))
    return RunResult("completed", output="the result", session_id="s-1", usage=(USAGE,))


def waiting(rig: Rig) -> list[Path]:
    return list((rig.folder / "home" / "outbox").glob("*.json"))


# --- with a whole daemon ---


async def test_the_server_is_away_at_completion(rig: Rig) -> None:
    """RP-05, D10: unreachable when the agent ends; the result is on disk, the slot is free, no fail is ever sent, and
    everything arrives when the server is back."""

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        rig.server.unreachable = True
        return await thorough(spec, emit, stop)

    rig.bench.script = script
    async with rig.daemon() as daemon:
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: len(daemon.ctx.outbox))
        await until_async(lambda: daemon.ctx.slots.free == daemon.ctx.slots.total)
        assert len(waiting(rig)) == 1
        assert task.status == "running"
        rig.server.unreachable = False
        await rig.ended(task, "completed")
        await until_async(lambda: not waiting(rig))
    assert task.result["output"] == "the result"
    assert (task.session["session_id"], task.usage[0]["model"]) == ("s-1", "m")
    assert [message["content"] for message in task.messages.values()] == ["words"]
    assert not rig.server.calls("fail")


async def test_the_daemon_is_restarted_during_the_outage(rig: Rig) -> None:
    """D10: the new process kills survivors, sends the old result, and only then asks for orphan recovery, so the true
    result arrives and nothing runs again."""

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        rig.server.unreachable = True
        return await thorough(spec, emit, stop)

    rig.bench.script = script
    async with rig.daemon() as daemon:
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: len(waiting(rig)) and not len(daemon.ctx.active))
        await rig.kill(daemon)
    rig.bench.events.clear()
    rig.server.seen.clear()
    async with rig.daemon(ready=False) as daemon:
        await until_async(lambda: "kill survivors" in rig.bench.events)
        rig.server.unreachable = False
        await until_async(daemon.ready.is_set)
        await rig.ended(task, "completed")
        await rig.seen("recover-orphans")
    order = [each.verb for each in rig.server.seen]
    assert order.index("complete") < order.index("recover-orphans")
    assert task.result["output"] == "the result"
    assert rig.bench.launched == [task.id]


async def test_recovery_waits_for_an_ending_that_does_not_get_through(rig: Rig) -> None:
    """D10: the report is refused with 500 while all else works: its runtime is not recovered, and claims nothing,
    before the report is through."""
    task = await _left_behind(rig)
    fault = rig.server.fault("/complete", times=3, status=500)
    second = rig.server.add_task()
    async with rig.daemon():
        await rig.ended(task, "completed")
        await rig.ended(second, "completed")
    assert fault.hits == 3
    order = [each.verb for each in rig.server.seen]
    assert order.count("complete") == 5, "three refused, one taken, and the second task's own"
    taken = [at for at, verb in enumerate(order) if verb == "complete"][3]
    assert taken < order.index("recover-orphans") < order.index("start")


async def test_an_ending_that_never_gets_through_does_not_stop_the_machine(rig: Rig) -> None:
    """After six server errors about one report, recovery and claims go on; the report is still kept and tried."""
    task = await _left_behind(rig)
    rig.server.fault(f"{task.id}/complete", times=10**6, status=500)
    second = rig.server.add_task()
    async with rig.daemon():
        await rig.ended(second, "completed")
        assert len(waiting(rig)) == 1
    assert task.result == {"failure_reason": "runtime_recovery"}


async def _left_behind(rig: Rig) -> FakeTask:
    """A task whose daemon died with the result still in the outbox."""

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        rig.server.unreachable = True
        return await thorough(spec, emit, stop)

    rig.bench.script = script
    async with rig.daemon() as daemon:
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: len(waiting(rig)) and not len(daemon.ctx.active))
        await rig.kill(daemon)
    rig.server.unreachable = False
    rig.server.seen.clear()
    rig.bench.script = done
    return task


async def test_a_crash_before_the_first_attempt_loses_nothing(rig: Rig) -> None:
    """D10: killed between the fsync and the answer: the report is on disk before it is sent."""
    held = asyncio.Event()
    rig.server.fault("/complete", hold=held, drop=True)
    async with rig.daemon() as daemon:
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.seen("complete")
        assert len(waiting(rig)) == 1
        await rig.kill(daemon)
    held.set()
    assert task.status == "running"
    async with rig.daemon():
        await rig.ended(task, "completed")
    assert rig.bench.launched == [task.id]


async def test_a_killed_run_is_recovered_not_reported(rig: Rig) -> None:
    """O-01, O-08: no ending was written, so recovery fails the task; the next start does not invent a result."""
    started = asyncio.Event()

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    rig.bench.script = script
    async with rig.daemon() as daemon:
        task = rig.server.add_task()
        await rig.server.hint()
        await asyncio.wait_for(started.wait(), 10)
        await rig.kill(daemon)
    assert task.status == "running"
    async with rig.daemon():
        await rig.ended(task, "failed")
    assert task.result["failure_reason"] == "runtime_recovery"
    assert not {"fail", "complete"} & {each.verb for each in rig.server.of(task)}


async def test_a_refused_completion_becomes_a_failure(rig: Rig) -> None:
    """RP-06: 400 is the server's last word about the completion, and the task must not stay running."""
    rig.server.fault("/complete", status=400, body={"error": "output: too long"})
    rig.bench.script = thorough
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "failed")
        await until_async(lambda: not waiting(rig))
    assert task.result["error"].startswith("complete task failed")
    assert task.result["session_id"] == "s-1"


@pytest.mark.parametrize("code", ["stale_claim", "task_ended"])
async def test_a_superseded_ending_is_dropped_in_silence(rig: Rig, code: str) -> None:
    """L-11, D2: 409 with such a code is final; above all no fail follows, which would end the new delivery's task."""
    rig.server.fault("/complete", status=409, body={"error": "old delivery", "code": code})
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.seen("complete")
        await until_async(lambda: not waiting(rig))
    assert task.status == "running"
    assert not rig.server.calls("fail")


async def test_an_ending_counts_as_held(rig: Rig) -> None:
    """D10: heartbeats name what waits in the outbox, so the server does not take it for an orphan."""
    rig.server.fault("/complete", times=2, status=503)
    async with rig.daemon() as daemon:
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: len(daemon.ctx.outbox) and not len(daemon.ctx.active))
        (held,) = daemon.heartbeats.compose(task.runtime_id)["active_tasks"]
        assert held == {"task_id": task.id, "claim_token": task.token}
        await rig.ended(task, "completed")
        await until_async(lambda: not daemon.heartbeats.compose(task.runtime_id)["active_tasks"])


async def test_no_moment_without_being_held(rig: Rig) -> None:
    """D10: between claim and settled report every heartbeat that is composed names the task."""
    gaps: list[str] = []
    async with rig.daemon() as daemon:
        original = daemon.heartbeats.compose
        task = rig.server.add_task()

        def look() -> None:
            if task.status in ("dispatched", "running") and task.started_with:
                named = [each["task_id"] for each in original(task.runtime_id)["active_tasks"]]
                gaps.extend([] if task.id in named else [task.status])

        ticker = asyncio.create_task(_every_turn(look))
        await rig.server.hint()
        await rig.ended(task, "completed")
        ticker.cancel()
    assert not gaps


async def _every_turn(look: Any) -> None:
    while True:
        look()
        await asyncio.sleep(0)


# --- the outbox alone ---


class Box:
    def __init__(self, server: FakeServer, folder: Path) -> None:
        self.server, self.folder, self.clock = server, folder, ManualClock()
        self.http = HttpClient(server.url, TOKEN, self.clock)
        self.outbox = self.fresh()

    def fresh(self, url: str = "http://one") -> Outbox:
        return Outbox(self.folder, ServerApi(self.http), self.clock, url)


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    async with FakeServer() as server:
        box = Box(server, tmp_path / "outbox")
        yield box
        await box.http.close()


def ending(kind: Any = "complete", **more: Any) -> Ending:
    return Ending("t1", "r1", "c1", kind, {"output": "x"}, **more)


async def test_the_file_is_complete_before_anything_is_sent(box: Box) -> None:
    await box.outbox.put(ending(usage=[{"model": "m"}]))
    (path,) = box.folder.glob("*.json")
    stored = json.loads(path.read_text())
    assert stored["body"] == {"output": "x"}
    assert stored["usage"] == [{"model": "m"}]
    assert path.stat().st_mode & 0o077 == 0
    assert not box.server.seen


async def test_what_is_on_disk_is_what_a_new_process_sends(box: Box) -> None:
    await box.outbox.put(ending())
    second = box.fresh()
    await second.load()
    assert second.blocks_recovery("r1")
    box.server.fault("complete", status=200)
    await second.replay()
    assert not len(second)
    assert not list(box.folder.glob("*"))
    assert box.server.calls("complete")[0].body == {"output": "x", "claim_token": "c1"}


async def test_endings_of_another_server_stay(box: Box) -> None:
    """A profile that was pointed elsewhere for a while must not hand its results to the wrong server."""
    await box.outbox.put(ending())
    other = box.fresh("http://two")
    await other.load()
    await other.replay()
    assert not box.server.seen
    assert len(list(box.folder.glob("*.json"))) == 1


async def test_an_unreadable_file_is_set_aside(box: Box) -> None:
    box.folder.mkdir(parents=True)
    (box.folder / "broken.json").write_text("{")
    await box.outbox.put(ending())
    second = box.fresh()
    await second.load()
    assert len(second) == 1
    assert (box.folder / "broken.unreadable").is_file()


async def test_attempts_follow_the_schedule_and_never_stop(box: Box) -> None:
    """RP-02, RP-05: 4, 8, 16, 32, 64 s and then every 64 s, for as long as it takes."""
    box.server.fault("complete", times=8, status=503)
    box.server.fault("complete", times=1, status=200)
    await box.outbox.put(ending())
    waits = []
    while len(box.outbox):
        wait = await box.outbox.run_once()
        waits.append(round(wait))
        await box.clock.advance(wait)
    assert waits == [4, 8, 16, 32, 64, 64, 64, 64, 3600]


async def test_a_reconnect_makes_it_due_at_once(box: Box) -> None:
    box.server.fault("complete", status=503)
    box.server.fault("complete", status=200)
    await box.outbox.put(ending())
    assert await box.outbox.run_once() > 3
    box.outbox.retry_now()
    assert await box.outbox.run_once() == 3600
    assert not len(box.outbox)


async def test_a_refused_part_does_not_hold_up_the_report(box: Box) -> None:
    """Usage that the server cannot read is worth less than the result behind it."""
    box.server.fault("usage", status=400)
    box.server.fault("complete", status=200)
    await box.outbox.put(ending(usage=[{"model": "m"}]))
    await box.outbox.replay()
    assert not len(box.outbox)


async def test_a_part_that_always_breaks_holds_it_up_only_for_a_while(box: Box) -> None:
    box.server.fault("usage", times=99, status=500)
    box.server.fault("complete", status=200)
    await box.outbox.put(ending(usage=[{"model": "m"}]))
    for _ in range(PATIENCE + 1):
        box.outbox.retry_now()
        await box.outbox.run_once()
    assert not len(box.outbox)
    assert len(box.server.calls("usage")) == PATIENCE + 1


async def test_a_long_tail_goes_in_pieces(box: Box) -> None:
    """Megabytes of transcript in one request would meet the server's limit and the five seconds of the call."""
    messages = [{"seq": seq, "type": "text", "content": "x" * 400_000} for seq in range(1, 8)]
    box.server.fault("messages|complete", times=99, status=200)
    await box.outbox.put(ending(messages=messages))
    await box.outbox.replay()
    sent = [[message["seq"] for message in call.body["messages"]] for call in box.server.calls("messages")]
    assert sent == [[1, 2], [3, 4], [5, 6], [7]]


async def test_two_senders_send_once(box: Box) -> None:
    """The runner's attempt and the loop's meet: one request."""
    hold = asyncio.Event()
    box.server.fault("complete", hold=hold, status=200)
    one = ending()
    await box.outbox.put(one)
    first = asyncio.create_task(box.outbox.deliver(one))
    await until_async(lambda: box.server.seen)
    assert not await box.outbox.deliver(one)
    hold.set()
    assert await first
    assert len(box.server.calls("complete")) == 1


async def test_a_full_disk_loses_no_report_of_a_living_daemon(box: Box, tmp_path: Path) -> None:
    (tmp_path / "outbox").write_text("a file where the directory belongs")
    box.server.fault("complete", status=200)
    one = ending()
    await box.outbox.put(one)
    assert await box.outbox.deliver(one)


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (HttpError("POST", "/", 400, '{"error":"x"}'), True),
        (HttpError("POST", "/", 404, '{"error":"task not found"}'), True),
        (HttpError("POST", "/", 404, "<html>"), False),
        (HttpError("POST", "/", 401, '{"error":"invalid token"}'), False),
        (HttpError("POST", "/", 408, ""), False),
        (HttpError("POST", "/", 429, ""), False),
        (HttpError("POST", "/", 500, ""), False),
        (HttpError("POST", "/", 501, ""), False),
        (HttpError("POST", "/", 302, ""), False),
        (TransportError("x"), False),
    ],
)
def test_what_is_final(error: Exception, final: bool) -> None:
    """RP-06: only the server's own refusal of this report. A lost login, a proxy's page or an outage keeps it."""
    assert is_final(error) is final
