"""One task from claim to ending, with a real daemon, real sockets and a scripted agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from daemon_client import protocol
from daemon_client.agents.base import (
    AgentError,
    Emit,
    RunResult,
    RunSpec,
    SessionStarted,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
)
from daemon_client.protocol import ClaimedTask
from tests.daemon_client.engine.conftest import Rig, until_stopped
from tests.support.fake_server import FakeServer, FakeTask
from tests.support.wait import until_async

USAGE = Usage("claude", "m", input_tokens=3, output_tokens=4)


def verbs(server: FakeServer, task_id: str) -> list[str]:
    return [each.verb for each in server.seen if task_id in each.path]


async def test_the_order_of_a_run(rig: Rig) -> None:
    """EX-01, EX-04, RP-07: start after preparation, progress before the launch, usage before the terminal report."""

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        emit(Text("hello"))
        return RunResult("completed", output="all done", usage=(USAGE,))

    rig.bench.script = script
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "completed")
    seen = [verb for verb in verbs(rig.server, task.id) if verb != "status"]
    assert seen == ["start", "progress", "messages", "progress", "usage", "complete"]
    assert rig.bench.events[-3:] == ["prepare", "launch", "finish completed"]
    assert task.result["output"] == "all done"
    progress = [each.body for each in rig.server.of(task) if each.verb == "progress"]
    assert [(each["step"], each["total"]) for each in progress] == [(1, 2), (2, 2)]
    assert progress[0]["summary"] == "Launching claude"
    assert "status" in verbs(rig.server, task.id)


async def test_the_directory_exists_before_the_start(rig: Rig) -> None:
    """T-07: whoever hears `running` finds the directory, every time."""
    missing: list[str] = []

    def look(task: FakeTask) -> None:
        if not (rig.bench.root / task.id / "workdir").is_dir():
            missing.append(task.id)

    rig.server.on_start = look
    async with rig.daemon(max_concurrent_tasks=32):
        tasks = [rig.server.add_task() for _ in range(250)]
        await rig.server.hint()
        for task in tasks:
            await rig.ended(task, "completed")
    assert not missing


async def test_a_missing_directory_is_never_started(rig: Rig) -> None:
    """T-07: the guard itself."""
    rig.bench.make_directory = False
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "failed")
    assert not rig.server.calls("start")
    assert not rig.bench.launched


async def test_a_slow_preparation_keeps_its_lease(rig: Rig) -> None:
    """L-04, L-06: 280 s of preparation: a renewal about every 15 s, one start, one launch."""
    go = asyncio.Event()

    async def slow(task: ClaimedTask) -> None:
        await go.wait()

    rig.bench.on_prepare = slow
    async with rig.daemon(prepare_budget=1e9) as daemon:
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.seen("prepare-lease", 18)
        assert daemon.ctx.clock.monotonic() > 0
        go.set()
        await rig.ended(task, "completed")
        count = len(rig.server.calls("prepare-lease"))
        second = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(second, "completed")
    assert len(rig.server.calls("prepare-lease")) == count, "renewals end with the start"
    assert rig.server.calls("prepare-lease")[0].body == {"claim_token": task.token}
    assert len([each for each in rig.server.of(task) if each.verb == "start"]) == 1


async def test_preparation_has_a_budget(rig: Rig) -> None:
    async def never(task: ClaimedTask) -> None:
        await asyncio.Event().wait()

    rig.bench.on_prepare = never
    async with rig.daemon(prepare_budget=20):
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "failed")
    assert task.result["failure_reason"] == "timeout"
    assert not rig.server.calls("start")


async def test_the_session_is_pinned_while_the_agent_runs(rig: Rig) -> None:
    """S-01: session and directory are known to the server long before the end."""
    go = asyncio.Event()

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        emit(SessionStarted("s-1"))
        await go.wait()
        return RunResult("completed", output="x", session_id="s-1")

    rig.bench.script = script
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: task.session)
        assert task.status == "running"
        assert task.session["session_id"] == "s-1"
        assert Path(task.session["work_dir"]).name == "workdir"
        go.set()
        await rig.ended(task, "completed")
    assert task.result["session_id"] == "s-1"
    assert task.result["work_dir"] == task.session["work_dir"]


async def test_messages_arrive_in_order_and_in_batches(rig: Rig) -> None:
    """V-12, V-13: 3,000 events become few requests, numbered in the order of arrival; text is joined."""

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        for number in range(1000):
            emit(Text("a"))
            emit(Text("b"))
            emit(ToolUse("Bash", {"command": str(number)}, f"c{number}"))
            emit(ToolResult("", "x" * 10_000, f"c{number}"))
        emit(Thinking("hm"))
        emit(AgentError("oops"))
        return RunResult("completed")

    rig.bench.script = script
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "completed")
    assert sorted(task.messages) == list(range(1, 3003))
    kinds = [task.messages[seq]["type"] for seq in sorted(task.messages)]
    assert kinds == ["text", "tool_use", "tool_result"] * 1000 + ["thinking", "error"]
    assert task.messages[1]["content"] == "ab"
    assert task.messages[3]["tool"] == "Bash"
    assert len(task.messages[3]["output"]) == protocol.TOOL_OUTPUT_LIMIT
    assert len(rig.server.calls("messages")) < 20


async def test_output_streams_during_the_run(rig: Rig) -> None:
    """EX-05."""
    go = asyncio.Event()

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        emit(Text("first"))
        await go.wait()
        return RunResult("completed")

    rig.bench.script = script
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: task.messages)
        assert task.status == "running"
        go.set()
        await rig.ended(task, "completed")


async def test_a_lost_batch_is_sent_again(rig: Rig) -> None:
    """V-12: three batches refused for now: nothing is missing in the end, nothing is numbered twice."""
    rig.server.fault("messages", times=3, status=503)

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        for number in range(5):
            emit(ToolUse("T", {"n": number}))
            await until_async(lambda n=number: len(rig.server.calls("messages")) > min(n, 3))
        return RunResult("completed")

    rig.bench.script = script
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "completed")
    assert [task.messages[seq]["input"]["n"] for seq in sorted(task.messages)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("status", ["failed", "cancelled", "blocked", "foo"])
async def test_only_completed_is_a_success(rig: Rig, status: str) -> None:
    """RP-03: every other word, also one that nobody has thought of yet, ends as a failure."""

    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        return RunResult(status, output="looks fine", error="it broke", usage=(USAGE,))  # type: ignore[arg-type]

    rig.bench.script = script
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "failed")
    assert task.result["error"] == "it broke"
    assert task.result["failure_reason"]
    assert task.usage, "usage comes on every path"


async def test_an_adapter_that_breaks_is_a_failure(rig: Rig) -> None:
    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        raise RuntimeError("bug in the adapter")

    rig.bench.script = script
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "failed")
    assert "bug in the adapter" in task.result["error"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"agent_id": ""}, "invalid_task_identity"),
        ({"agent": None}, "invalid_task_identity"),
        ({"agent": {"id": "other"}}, "invalid_task_identity"),
        ({"workspace_id": ""}, "invalid_task_identity"),
        ({"auth_token": "mul_" + "b" * 40}, "invalid_task_identity"),
    ],
)
async def test_what_must_not_be_launched(rig: Rig, fields: dict[str, object], reason: str) -> None:
    """The daemon never spawns an agent for a claim whose identities do not fit, and says so before any start."""
    async with rig.daemon():
        task = rig.server.add_task(**fields)
        await rig.server.hint()
        await rig.ended(task, "failed")
    assert task.result["failure_reason"] == reason
    assert not rig.bench.launched
    assert not rig.server.calls("start")


async def test_a_runtime_that_is_gone_runs_nothing(rig: Rig) -> None:
    async with rig.daemon():
        task = rig.server.add_task()
        task.fields["runtime_id"] = "another"
        await rig.server.hint()
        await rig.ended(task, "failed")
    assert task.result["failure_reason"] == "runtime_offline"
    assert not rig.bench.launched


async def test_an_outdated_start_is_refused_and_nothing_more_is_said(rig: Rig) -> None:
    """L-10, L-11: delivered again while preparing: the older one launches nothing and sends no fail, the newer runs."""
    first = asyncio.Event()
    entered: list[str] = []

    async def slow(task: ClaimedTask) -> None:
        entered.append(task.claim_token)
        if len(entered) == 1:
            await first.wait()

    rig.bench.on_prepare = slow
    async with rig.daemon(status_poll_interval=3600.0, websocket=False):
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: entered)
        task.tokens.append("another delivery")
        first.set()
        await until_async(lambda: "superseded" in [outcome for _, outcome in rig.bench.finished])
        assert not rig.bench.launched
        assert {each.verb for each in rig.server.of(task)} <= {"start", "status", "prepare-lease"}
        rig.server.redeliver(task)
        await rig.server.hint()
        await rig.ended(task, "completed")
    assert rig.bench.launched == [task.id]
    assert task.started_with == [task.tokens[-1]]


async def test_a_superseded_run_stops_and_sends_nothing(rig: Rig) -> None:
    """L-11, D2: the status poll says `stale_claim`; the agent is stopped, and no fail, usage or cancel-ack follows."""
    rig.bench.script = until_stopped
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: task.status == "running")
        task.tokens.append("another delivery")
        await until_async(lambda: rig.bench.finished)
    verdicts = [each.verb for each in rig.server.of(task)]
    assert not {"fail", "complete", "cancel-ack", "usage"} & set(verdicts)
    assert task.status == "running"


async def test_the_same_task_again_while_it_is_still_held(rig: Rig) -> None:
    """The old run is gone before the new one begins: two agents never share a directory."""
    rig.bench.script = until_stopped
    running: list[int] = []

    async with rig.daemon() as daemon:
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: rig.bench.launched)
        rig.server.redeliver(task)

        async def second(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
            running.append(len(daemon.ctx.active))
            return RunResult("completed")

        rig.bench.script = second
        await rig.server.hint()
        await rig.ended(task, "completed")
    assert running == [1]
    assert len(task.tokens) == 2


async def test_a_start_is_repeated_only_with_a_claim_token(rig: Rig) -> None:
    """D2: a start whose answer was lost is asked again; the server knows it by its token."""
    rig.server.fault("/start", drop_after=True)
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "completed")
    assert len(rig.server.calls("start")) == 2
    assert rig.bench.launched == [task.id]


async def test_a_start_without_token_is_not_repeated(rig: Rig) -> None:
    rig.server.old = True
    rig.server.fault("/start", drop_after=True)
    async with rig.daemon():
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "failed")
    assert len(rig.server.calls("start")) == 1
    assert task.result["error"].startswith("start task failed")
    assert not rig.bench.launched


async def test_an_ended_task_is_not_launched(rig: Rig) -> None:
    """`task_ended` on start is final: no launch, no report."""

    async def end(task: ClaimedTask) -> None:
        rig.server.tasks[task.id].status = "cancelled"

    rig.bench.on_prepare = end
    async with rig.daemon(status_poll_interval=3600.0, websocket=False):
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: rig.bench.finished)
    assert not rig.bench.launched
    assert not {"fail", "complete"} & set(verbs(rig.server, task.id))


async def test_a_silent_agent_is_stopped(rig: Rig) -> None:
    """L-22: the idle watchdog is the daemon's, with its own reason."""
    rig.bench.script = until_stopped
    async with rig.daemon(agent_idle_watchdog=10):
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "failed")
    assert task.result["failure_reason"] == "idle_watchdog"


async def test_a_long_tool_call_has_its_own_limit(rig: Rig) -> None:
    async def script(spec: RunSpec, emit: Emit, stop: asyncio.Event) -> RunResult:
        emit(ToolUse("Bash", {}, "1"))
        return await until_stopped(spec, emit, stop)

    rig.bench.script = script
    async with rig.daemon(agent_idle_watchdog=5, agent_tool_watchdog=60) as daemon:
        task = rig.server.add_task()
        await rig.server.hint()
        await until_async(lambda: task.status == "running")
        began = daemon.ctx.clock.monotonic()
        await rig.ended(task, "failed")
        assert daemon.ctx.clock.monotonic() - began >= 55
    assert "tool call" in task.result["error"]


async def test_the_wall_clock_of_a_run(rig: Rig) -> None:
    rig.bench.script = until_stopped
    async with rig.daemon(agent_timeout=10):
        task = rig.server.add_task()
        await rig.server.hint()
        await rig.ended(task, "failed")
    assert task.result["failure_reason"] == "timeout"


async def test_what_the_agent_is_launched_with(rig: Rig) -> None:
    rig.server.profiles = [
        {
            "id": "p1",
            "protocol_family": "plain",
            "command_name": "fixer",
            "fixed_args": ["--fast"],
            "display_name": "Fixer",
            "enabled": True,
        }
    ]
    async with rig.daemon():
        runtime = next(each for each in rig.server.runtimes.values() if each["profile_id"] == "p1")
        agent = {"id": "a", "name": "B", "model": "big", "custom_args": ["-v"], "mcp_config": {"mcpServers": {}}}
        task = rig.server.add_task(runtime["id"], agent_id="a", agent=agent)
        await rig.server.hint()
        await rig.ended(task, "completed")
    (spec,) = rig.bench.specs
    assert spec.executable == ["/opt/fixer", "--fast"]
    assert (spec.provider, spec.model, spec.custom_args) == ("plain", "big", ["-v"])
    assert spec.mcp_config == {"mcpServers": {}}
