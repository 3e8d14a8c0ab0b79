"""The real Codex CLI against a model API on loopback: what a user's machine runs, without the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon_client import protocol
from daemon_client.agents import base
from daemon_client.agents.base import CANCELLED, COMPLETED, FAILED
from daemon_client.agents.codex_app_server import CodexAdapter, Limits
from daemon_client.config import DaemonSettings, RuntimeInfo
from daemon_client.workspace import exec_env
from tests.daemon_client.agents.conftest import Runner
from tests.daemon_client.workspace.conftest import fingerprint, make_task
from tests.support.model_api import (
    API_KEY,
    CACHE_READ_TOKENS,
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

GONE = "01a23f8a-470c-7c10-92c5-04ab52d3e4ce"
CONFIG = """
model_provider = "loopback"
model = "model-1"
[model_providers.loopback]
name = "loopback"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "LOOPBACK_KEY"
request_max_retries = 0
stream_max_retries = 0
"""


class Codex:
    """One CLI with one home, and a model API that the test scripts."""

    def __init__(self, binary: Path, runner: Runner) -> None:
        self.binary, self.runner = binary, runner
        self.home = runner.cwd.parent / "codex-home"
        self.home.mkdir()
        self.api = ModelApi()
        (self.home / "config.toml").write_text(CONFIG.format(url=self.api.url))

    def spec(self, prompt: str = "hello", **options: object) -> base.RunSpec:
        env = {**self.runner.env, "CODEX_HOME": str(self.home), "LOOPBACK_KEY": API_KEY}
        return self.runner.spec("codex", [str(self.binary)], prompt, env=env, **options)

    async def run(self, *steps: Step, prompt: str = "hello", **options: object) -> base.RunResult:
        self.api.script(steps)
        return await self.runner.run(self.spec(prompt, **options))


@pytest.fixture
def cli(codex: Path, runner: Runner) -> Iterator[Codex]:
    one = Codex(codex, runner)
    with one.api:
        yield one


def tokens(result: base.RunResult) -> tuple[int, int, int]:
    (usage,) = result.usage
    return usage.input_tokens, usage.output_tokens, usage.cache_read_tokens


def per_turn(turns: int) -> tuple[int, int, int]:
    return INPUT_TOKENS * turns, OUTPUT_TOKENS * turns, CACHE_READ_TOKENS * turns


async def test_a_plain_answer(cli: Codex) -> None:
    """EX-05, S-01: the answer is the output; the session is told before any text; cached tokens are counted apart."""
    result = await cli.run(Say("forty-two"), prompt="what is the answer?")
    assert (result.status, result.output, result.failure_reason) == (COMPLETED, "forty-two", "")
    assert cli.runner.events == [base.SessionStarted(result.session_id), base.Text("forty-two")]
    assert "what is the answer?" in str(cli.api.turns[0]["input"])
    assert (tokens(result), result.usage[0].model) == (per_turn(1), "model-1")
    assert cli.runner.survivors() == []


async def test_a_tool_edits_a_file_and_the_conversation_is_resumed(cli: Codex) -> None:
    """S-11: a patch runs without anybody's permission and is streamed. The next run knows it, and what the first one
    used is not counted again.
    """
    patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: note.txt\n+written\n*** End Patch\nEOF"
    first = await cli.run(UseTool("exec_command", {"cmd": patch}, text="I write"), Say("done it"))
    assert (first.status, first.output) == (COMPLETED, "done it")
    assert (cli.runner.cwd / "note.txt").read_text() == "written\n"
    (use,), (answer,) = cli.runner.of(base.ToolUse), cli.runner.of(base.ToolResult)
    assert isinstance(use, base.ToolUse)
    assert isinstance(answer, base.ToolResult)
    assert (use.tool, answer.tool, use.call_id) == ("patch_apply", "patch_apply", answer.call_id)
    assert "note.txt" in str(use.input)
    assert tokens(first) == per_turn(2)
    cli.runner.events.clear()
    second = await cli.run(Say("BLUE"), prompt="which?", resume_session_id=first.session_id, thinking_level="low")
    assert (second.status, second.output, second.session_id) == (COMPLETED, "BLUE", first.session_id)
    assert second.retired_session_id == ""
    assert cli.runner.of(base.Text) == [base.Text("BLUE")]
    assert "done it" in str(cli.api.turns[-1]["input"])
    assert cli.api.turns[-1]["reasoning"]["effort"] == "low"
    assert tokens(second) == per_turn(1)


async def test_a_lost_conversation_starts_fresh_once(cli: Codex) -> None:
    """S-04: the run succeeds in a new thread, the lost one is named, the agent is told of the loss."""
    result = await cli.run(Say("fresh"), prompt="go on", resume_session_id=GONE)
    assert (result.status, result.output, result.retired_session_id) == (COMPLETED, "fresh", GONE)
    assert cli.runner.of(base.SessionStarted) == [base.SessionStarted(result.session_id)]
    assert result.session_id not in ("", GONE)
    assert "could not be restored" in str(cli.api.turns[0]["input"])
    assert len(cli.api.turns) == 1


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Refuse(429, "rate_limit_error", "slow down please"), protocol.REASON_PROVIDER_CAPACITY),
        (Refuse(500, "api_error", "boom"), protocol.REASON_PROVIDER_SERVER),
        (Cut("half an ans"), protocol.REASON_PROVIDER_NETWORK),
    ],
    ids=["429", "500", "cut"],
)
async def test_a_provider_failure_is_never_green(cli: Codex, step: Step, reason: str) -> None:
    """RP-04: each failure of the model service ends the run as failed, with its own reason and no output."""
    result = await cli.run(step)
    assert (result.status, result.failure_reason, result.output) == (FAILED, reason, ""), result.error
    assert result.session_id
    assert API_KEY not in result.error
    assert cli.runner.survivors() == []


async def test_a_model_that_never_begins_is_given_up(cli: Codex) -> None:
    """S-09: a turn that begins and then says nothing ends by the family's own limit, with its session kept."""
    cli.api.script([Hang("thinking about it")])
    adapter = CodexAdapter(Limits(inactivity=1.0))
    result = await adapter.run(cli.spec(), cli.runner.events.append, asyncio.Event())
    assert (result.status, result.failure_reason) == (FAILED, protocol.REASON_CODEX_INACTIVITY)
    assert result.session_id
    assert cli.runner.survivors() == []


async def stop_when(cli: Codex, ready: Callable[[], bool]) -> base.RunResult:
    run = asyncio.create_task(cli.runner.run(cli.spec()))
    await until_async(ready, 60, "the agent never came to the point where it is stopped")
    cli.runner.stop.set()
    return await run


async def test_a_hanging_model_is_stopped(cli: Codex) -> None:
    """X-04, X-17: a run that waits for the model for ever ends at the stop (the watchdog's too), its session kept."""
    cli.api.script([Hang("thinking about it")])
    result = await stop_when(cli, lambda: cli.api.hanging > 0)
    assert (result.status, bool(result.session_id)) == (CANCELLED, True)
    assert cli.runner.survivors() == []


async def test_cancel_in_the_middle_of_a_tool_ends_the_whole_tree(cli: Codex) -> None:
    """X-04, X-05, X-15, CANCEL-01: a child hidden by setsid, and deaf to SIGTERM, is gone; what was said is kept."""
    flag = cli.runner.cwd / "started"
    command = (
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600; sleep 601' >/dev/null 2>&1 & "
        f"touch {flag}; sleep 603; sleep 604"
    )
    look = UseTool("exec_command", {"cmd": "true"})
    cli.api.script([look, UseTool("exec_command", {"cmd": command}, text="I start it now"), Say("never")])
    result = await stop_when(cli, lambda: flag.exists() and len(cli.runner.of(base.ToolUse)) == 2)
    assert result.status == CANCELLED
    assert base.Text("I start it now") in cli.runner.events
    assert tokens(result) == per_turn(1)
    assert cli.runner.survivors() == []


async def test_a_run_gets_the_managed_mcp_servers_and_no_others(cli: Codex) -> None:
    """The server of the run is started, the one of the user's configuration is not; neither is written anywhere."""
    mine, theirs = cli.runner.cwd / "mine", cli.runner.cwd / "theirs"
    with (cli.home / "config.toml").open("a") as file:
        file.write(f'[mcp_servers.theirs]\ncommand = "touch"\nargs = ["{theirs}"]\n')
    servers = {"mcpServers": {"mine": {"type": "stdio", "command": "touch", "args": [str(mine)]}}}
    result = await cli.run(Say("ok"), mcp_config=servers)
    assert result.status == COMPLETED
    assert (mine.exists(), theirs.exists()) == (True, False)


async def test_a_prepared_task_leaves_the_home_of_the_user_as_it_was(
    codex: Path, runner: Runner, tmp_path: Path
) -> None:
    """N-08, S-11: the real CLI works with the user's configuration in a home of the task; the next task of the issue
    resumes it.
    """
    home = tmp_path / "home"
    (home / ".codex").mkdir()
    settings = DaemonSettings("http://127.0.0.1:1", "", "d", workspaces_root=tmp_path / "root", environ=runner.env)
    results: list[base.RunResult] = []
    with ModelApi([Say("I remember BLUE"), Say("BLUE")]) as api:
        (home / ".codex" / "config.toml").write_text(CONFIG.format(url=api.url))
        before, custom, prior = fingerprint(home), {"custom_env": {"LOOPBACK_KEY": API_KEY}}, {}
        for number in (1, 2):
            prepared = await exec_env.prepare(
                task := make_task(number, agent=custom, **prior),
                settings=settings,
                runtime=RuntimeInfo("runtime-1", "ws-1", "codex"),
                daemon_port=1,
                server_url="http://127.0.0.1:1",
                slot=0,
            )
            options = {"cwd": prepared.workdir, "env": prepared.env, "resume_session_id": prepared.resume_session_id}
            results.append(await runner.run(runner.spec("codex", [str(codex)], prepared.prompt, **options)))
            await exec_env.finish(prepared, task, outcome=results[-1].status)
            prior = {"prior_work_dir": str(prepared.workdir), "prior_session_id": results[-1].session_id}
    assert [result.output for result in results] == ["I remember BLUE", "BLUE"], results
    assert results[0].session_id == results[1].session_id
    assert "multica repo checkout URL" in str(api.turns[0])
    assert fingerprint(home) == before
