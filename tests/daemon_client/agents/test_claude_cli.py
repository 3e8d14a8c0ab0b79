"""The real Claude Code against a model API on loopback: what a user's machine runs, without the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from daemon_client import protocol
from daemon_client.agents import base
from daemon_client.agents.base import CANCELLED, COMPLETED, FAILED
from daemon_client.agents.registry import BELOW_MINIMUM, detect
from daemon_client.config import DaemonSettings, RuntimeInfo
from daemon_client.protocol import ClaimedTask
from daemon_client.workspace import exec_env
from daemon_client.workspace.exec_env import Prepared
from tests.daemon_client.agents.conftest import Runner, api_env
from tests.daemon_client.workspace.conftest import fingerprint, make_task
from tests.support.model_api import (
    API_KEY,
    CACHE_READ_TOKENS,
    CACHE_WRITE_TOKENS,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    Cut,
    Hang,
    ModelApi,
    Refuse,
    Say,
    Step,
    UseTool,
)
from tests.support.wait import until_async

GONE = "6f0c2d1e-9b3a-4c57-8f21-0a1b2c3d4e5f"


class Claude:
    """One CLI with one home, and a model API that the test scripts."""

    def __init__(self, binary: Path, runner: Runner) -> None:
        self.binary, self.runner = binary, runner
        self.home = runner.cwd.parent / "claude-home"
        self.home.mkdir()
        self.api = ModelApi()

    def spec(self, prompt: str = "hello", **options: object) -> base.RunSpec:
        env = api_env(self.runner.env, self.api.url, API_KEY, self.home)
        return self.runner.spec("claude", [str(self.binary)], prompt, env=env, **options)

    async def run(self, *steps: Step, prompt: str = "hello", **options: object) -> base.RunResult:
        self.api.script(steps)
        return await self.runner.run(self.spec(prompt, **options))


@pytest.fixture
def cli(claude: Path, runner: Runner) -> Iterator[Claude]:
    one = Claude(claude, runner)
    with one.api:
        yield one


def per_turn(turns: int) -> tuple[int, int, int, int]:
    return INPUT_TOKENS * turns, OUTPUT_TOKENS * turns, CACHE_READ_TOKENS * turns, CACHE_WRITE_TOKENS * turns


def tokens(result: base.RunResult) -> tuple[int, int, int, int]:
    (usage,) = result.usage
    return usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens


async def test_a_plain_answer(cli: Claude) -> None:
    """EX-05, S-01: the answer is the output; the session is told before any text, and text before the end."""
    result = await cli.run(Say("forty-two"), prompt="what is the answer?")
    assert (result.status, result.output, result.failure_reason) == (COMPLETED, "forty-two", "")
    first = cli.runner.events[0]
    assert isinstance(first, base.SessionStarted)
    assert first.session_id == result.session_id
    assert base.Text("forty-two") in cli.runner.events
    assert "what is the answer?" in str(cli.api.turns[0]["messages"])
    assert tokens(result) == per_turn(1)
    assert cli.runner.survivors() == []


async def test_a_tool_edits_a_file(cli: Claude) -> None:
    """A tool runs without anybody's permission, is streamed with its result; usage is counted once."""
    target = cli.runner.cwd / "note.txt"
    result = await cli.run(UseTool("Write", {"file_path": str(target), "content": "written\n"}), Say("done it"))
    assert (result.status, result.output) == (COMPLETED, "done it")
    assert target.read_text() == "written\n"
    (use,), (answer,) = cli.runner.of(base.ToolUse), cli.runner.of(base.ToolResult)
    assert isinstance(use, base.ToolUse)
    assert isinstance(answer, base.ToolResult)
    assert (use.tool, use.input["file_path"], answer.tool) == ("Write", str(target), "Write")
    assert use.call_id == answer.call_id != ""
    assert tokens(result) == per_turn(2)
    assert result.usage[0].cost_usd_ticks


async def test_a_conversation_is_resumed_and_its_usage_not_counted_again(cli: Claude) -> None:
    """S-11: the second run knows the first; the CLI's totals go on counting, what is reported does not."""
    first = await cli.run(Say("I remember BLUE"))
    second = await cli.run(Say("BLUE it is"), prompt="which colour?", resume_session_id=first.session_id)
    assert (second.status, second.session_id, second.retired_session_id) == (COMPLETED, first.session_id, "")
    assert "I remember BLUE" in str(cli.api.turns[-1]["messages"])
    assert tokens(first) == tokens(second) == per_turn(1)
    third = await cli.run(UseTool("Bash", {"command": "true"}), Say("x"), resume_session_id=first.session_id)
    assert tokens(third) == per_turn(2)
    assert third.usage[0].cost_usd_ticks == 2 * (second.usage[0].cost_usd_ticks or 0)


async def test_a_lost_conversation_starts_fresh_once(cli: Claude) -> None:
    """S-04: the run succeeds in a new session, the lost one is named, the agent is told of the loss."""
    result = await cli.run(Say("fresh"), prompt="go on", resume_session_id=GONE)
    assert (result.status, result.output, result.retired_session_id) == (COMPLETED, "fresh", GONE)
    assert result.session_id not in ("", GONE)
    sessions = [event for event in cli.runner.events if isinstance(event, base.SessionStarted)]
    assert [event.session_id for event in sessions] == [result.session_id]
    assert "could not be restored" in str(cli.api.turns[0]["messages"])
    assert len(cli.api.turns) == 1


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Refuse(429, "rate_limit_error", "slow down please"), protocol.REASON_PROVIDER_CAPACITY),
        (Refuse(500, "api_error", "boom"), protocol.REASON_PROVIDER_SERVER),
        (Refuse(529, "overloaded_error", "Overloaded"), protocol.REASON_PROVIDER_CAPACITY),
        (Refuse(401, "authentication_error", "invalid x-api-key"), protocol.REASON_PROVIDER_AUTH),
        (Refuse(402, "billing_error", "Your credit balance is too low"), protocol.REASON_PROVIDER_QUOTA),
        (Refuse(400, "invalid_request_error", "prompt is too long: 250000 tokens"), protocol.REASON_CONTEXT_OVERFLOW),
        (Refuse(404, "not_found_error", "model: nothing-1"), protocol.REASON_MODEL_UNAVAILABLE),
        (Cut("half an ans"), protocol.REASON_PROVIDER_NETWORK),
    ],
    ids=lambda value: str(getattr(value, "status", "")) or type(value).__name__,
)
async def test_a_provider_failure_is_never_green(cli: Claude, step: Step, reason: str) -> None:
    """RP-04: each failure of the model service ends the run as failed, with its own reason and no output."""
    result = await cli.run(step)
    assert (result.status, result.failure_reason, result.output) == (FAILED, reason, "")
    assert result.error
    assert result.session_id
    assert API_KEY not in result.error
    assert cli.runner.survivors() == []


async def test_nobody_listens_at_the_model_service(cli: Claude) -> None:
    spec = cli.spec()
    env = {**spec.env, "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
    result = await cli.runner.run(cli.runner.spec("claude", [str(cli.binary)], env=env))
    assert (result.status, result.failure_reason) == (FAILED, protocol.REASON_PROVIDER_NETWORK)


async def stop_when(cli: Claude, ready: Callable[[], bool]) -> None:
    await until_async(ready, 60, "the agent never came to the point where it is stopped")
    cli.runner.stop.set()


async def test_a_hanging_model_is_stopped(cli: Claude) -> None:
    """X-04, X-17: a run that waits for the model for ever ends at the stop, with its session kept."""
    cli.api.script([Hang("thinking about it")])
    run = asyncio.create_task(cli.runner.run(cli.spec()))
    await stop_when(cli, lambda: cli.api.hanging > 0)
    result = await run
    assert result.status == CANCELLED
    assert result.session_id
    assert cli.runner.survivors() == []


async def test_cancel_in_the_middle_of_a_tool_ends_the_whole_tree(cli: Claude) -> None:
    """X-04, X-05, X-15: a child hidden by setsid, and deaf to SIGTERM, is gone; what was said before is kept."""
    flag = cli.runner.cwd / "started"
    command = (
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600; sleep 601' >/dev/null 2>&1 & "
        f"(env -i sh -c '/bin/sleep 602; :' {cli.runner.mark} >/dev/null 2>&1 &); touch {flag}; sleep 603; sleep 604"
    )
    cli.api.script([UseTool("Bash", {"command": command, "timeout": 600000}, text="I start it now"), Say("never")])
    run = asyncio.create_task(cli.runner.run(cli.spec()))
    await stop_when(cli, flag.exists)
    assert len(cli.runner.survivors()) >= 3
    result = await run
    assert result.status == CANCELLED
    assert base.Text("I start it now") in cli.runner.events
    assert [event.tool for event in cli.runner.events if isinstance(event, base.ToolUse)] == ["Bash"]
    assert tokens(result)[0] == INPUT_TOKENS
    assert cli.runner.survivors() == []


async def test_an_abandoned_run_leaves_nothing(cli: Claude) -> None:
    """A run whose task is cancelled, not stopped, takes its processes with it as well."""
    cli.api.script([Hang()])
    run = asyncio.create_task(cli.runner.run(cli.spec()))
    await until_async(lambda: cli.api.hanging > 0, 60)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert cli.runner.survivors() == []


async def test_secrets_of_the_environment_do_not_leave_the_machine(cli: Claude) -> None:
    """EX-02: the key and the task token are masked in tool input, tool output and the final answer."""
    token = "mat_0123456789abcdef0123456789abcdef01234567"
    cli.runner.env["MULTICA_TOKEN"] = token
    result = await cli.run(UseTool("Bash", {"command": f"echo {token} $ANTHROPIC_API_KEY"}), Say(f"it is {token}"))
    assert result.status == COMPLETED
    said = f"{cli.runner.events} {result}"
    assert token not in said
    assert API_KEY not in said
    assert "[redacted]" in result.output


async def test_the_command_line_and_managed_mcp(cli: Claude, tmp_path: Path) -> None:
    """The model and effort are passed on, flags of the adapter cannot be changed, the MCP file is removed."""
    result = await cli.run(
        Say("ok"),
        model="claude-test-1",
        thinking_level="low",
        custom_args=["--output-format", "text", "--permission-mode=plan", "'--verbose'"],
        mcp_config={"mcpServers": {}},
        tmpdir=tmp_path,
    )
    assert (result.status, result.output) == (COMPLETED, "ok")
    assert cli.api.turns[0]["model"] == "claude-test-1"
    assert list(tmp_path.glob("multica-mcp-*")) == []


async def test_a_prepared_task_runs_and_its_next_one_remembers(claude: Path, runner: Runner, tmp_path: Path) -> None:
    """N-08, N-10, S-11: in the directory that the daemon prepares, the real CLI reads its brief, is resumed by the next
    task of the issue, and leaves the home of the user byte for byte as it was.
    """
    home = tmp_path / "home"
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").write_text('{"env": {}}')
    (home / ".gitconfig").write_text("[user]\n\temail = person@example.org\n")
    before = fingerprint(home)
    settings = DaemonSettings("http://127.0.0.1:1", "", "d", workspaces_root=tmp_path / "root", environ=runner.env)
    runtime = RuntimeInfo("runtime-1", "ws-1", "claude")

    async def run(task: ClaimedTask) -> tuple[Prepared, base.RunResult]:
        prepared = await exec_env.prepare(
            task, settings=settings, runtime=runtime, daemon_port=1, server_url="http://127.0.0.1:1", slot=0
        )
        options = {"cwd": prepared.workdir, "env": prepared.env, "tmpdir": prepared.tmpdir}
        spec = runner.spec("claude", [str(claude)], prepared.prompt, **options)
        result = await runner.run(replace(spec, resume_session_id=prepared.resume_session_id))
        await exec_env.finish(prepared, task, outcome=result.status)
        return prepared, result

    with ModelApi([Say("I remember BLUE"), Say("BLUE")]) as api:
        custom = {"custom_env": api_env({}, api.url, API_KEY, home)}
        first, one = await run(make_task(1, agent=custom))
        prior = {"prior_work_dir": str(first.workdir), "prior_session_id": one.session_id}
        second, two = await run(make_task(2, agent=custom, **prior))
    assert (one.status, two.status, two.output) == (COMPLETED, COMPLETED, "BLUE")
    assert (second.workdir, two.session_id, tokens(two)) == (first.workdir, one.session_id, per_turn(1))
    assert "I remember BLUE" in str(api.turns[1]["messages"])
    assert "multica repo checkout URL" in str(api.turns[0])
    assert fingerprint(home) == before


def test_it_is_detected_with_its_version(claude: Path) -> None:
    """The installed CLI is found by its setting, and its version is read."""
    environ = {"PATH": "/usr/bin:/bin", "MULTICA_CLAUDE_PATH": str(claude), "HOME": "/nonexistent"}
    settings = DaemonSettings(server_url="http://127.0.0.1", token="", daemon_id="d", environ=environ)
    found = next(one for one in detect(settings) if one.provider == "claude")
    assert found.usable
    assert found.path == str(claude)
    assert found.version.startswith("2.")
    assert found.skipped_reason != BELOW_MINIMUM
