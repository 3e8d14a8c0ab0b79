"""The stream of Claude Code with a scripted CLI: the turns that a real one takes too rarely to wait for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from daemon_client import process, protocol
from daemon_client.agents import base, launch, stream_json
from daemon_client.agents.base import CANCELLED, COMPLETED, FAILED
from daemon_client.agents.stream_json import answer_control, build_argv
from daemon_client.agents.stream_json_events import StreamState
from tests.daemon_client.agents.conftest import Runner, Script
from tests.support.wait import until_async

HEAD = """
import json, os, signal, sys, time
def say(**event): print(json.dumps(event), flush=True)
def hear(): return json.loads(sys.stdin.readline())
def result(text="fine", **more): say(type="result", is_error=False, result=text, session_id="s-1", **more)
def refuse(text, **more): say(type="result", is_error=True, result=text, **more)
args = sys.argv[1:]
resumed = args[args.index("--resume") + 1] if "--resume" in args else ""
prompt = hear()["message"]["content"][0]["text"]
say(type="system", subtype="init", session_id=resumed or "s-1", model="m-1")
"""


async def run(runner: Runner, script: Script, body: str, prompt: str = "go", **options: object) -> base.RunResult:
    return await runner.run(runner.spec("claude", script(HEAD + body), prompt, **options))


async def test_permissions_are_granted_and_stdin_stays_open(runner: Runner, script: Script) -> None:
    """A request on the stream is answered at once, with background work turned into foreground work."""
    body = """
say(type="control_request", request_id="r-1", request={"subtype": "can_use_tool", "tool_name": "Bash",
    "input": {"command": "make", "run_in_background": True}})
answer = hear()
say(type="control_request", request_id="r-2", request={"subtype": "mystery"})
result(json.dumps([answer, hear()]))
assert sys.stdin.readline() == ""
"""
    done = await run(runner, script, body)
    assert done.status == COMPLETED, done
    allowed, refused = (answer["response"] for answer in json.loads(done.output))
    assert (allowed["request_id"], allowed["response"]["behavior"]) == ("r-1", "allow")
    assert allowed["response"]["updatedInput"] == {"command": "make", "run_in_background": False}
    assert (refused["request_id"], refused["subtype"]) == ("r-2", "error")


async def test_a_large_prompt_and_a_large_answer_do_not_lock_each_other(runner: Runner, script: Script) -> None:
    """Both pipes full at the same time is no deadlock, and a line of several MiB is one line."""
    body = 'say(type="log", text="y" * 5_000_000)\nresult(str(len(prompt)))\n'
    early = HEAD.replace("prompt = hear()", 'say(type="log", text="y" * 3_000_000)\nprompt = hear()')
    spec = runner.spec("claude", script(early + body), "x" * 2_000_000)
    assert (await runner.run(spec)).output == "2000000"


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        ("sys.exit(0)", protocol.REASON_EMPTY_OUTPUT, "without a result"),
        ("sys.exit(3)", protocol.REASON_PROCESS_FAILURE, "code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", protocol.REASON_PROCESS_FAILURE, "signal 9"),
        ('sys.exit("Invalid API key: please run /login")', protocol.REASON_PROVIDER_AUTH, "please run"),
        ('result("", terminal_reason="prompt_too_long")', protocol.REASON_CONTEXT_OVERFLOW, "too long"),
        ('refuse(""); sys.exit(1)', protocol.REASON_PROCESS_FAILURE, "without a text"),
        ('refuse("529 overloaded")', protocol.REASON_PROVIDER_CAPACITY, "529"),
        (
            'say(type="user", message={"content": [{"type": "tool_result", "tool_use_id": "1", '
            '"content": "status: async_launched"}]}); result()',
            protocol.REASON_PROCESS_FAILURE,
            "background",
        ),
    ],
)
async def test_only_a_result_is_success(runner: Runner, script: Script, body: str, reason: str, words: str) -> None:
    """RP-03, RP-04: neither the end of output nor exit code 0 counts; a failed run has a reason and no output."""
    done = await run(runner, script, body)
    assert (done.status, done.output) == (FAILED, "")
    assert done.failure_reason == reason, done
    assert words in done.error


async def test_a_process_that_stays_after_its_result(
    runner: Runner, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result stands; the process and a helper that holds its output are ended after a bounded time."""
    monkeypatch.setattr(launch, "EXIT_PATIENCE", 0.3)
    helper = 'import subprocess\nsubprocess.Popen(["sleep", "600"], start_new_session=True)\n'
    body = helper + 'result("done")\ntime.sleep(600)\n'
    async with asyncio.timeout(20):
        done = await run(runner, script, body)
    assert (done.status, done.output) == (COMPLETED, "done")
    assert runner.survivors() == []


async def test_the_output_falls_back_to_the_last_text_without_a_tool(runner: Runner, script: Script) -> None:
    body = """
def turn(*blocks): say(type="assistant", message={"id": str(len(blocks)), "model": "m-1", "content": list(blocks)})
turn({"type": "text", "text": "I look"}, {"type": "tool_use", "id": "1", "name": "Read", "input": {}})
turn({"type": "thinking", "thinking": "hm"})
turn({"type": "text", "text": "here it is"})
result("")
"""
    done = await run(runner, script, body)
    assert done.output == "here it is"
    assert base.Thinking("hm") in runner.events


async def test_noise_on_the_stream_is_ignored(runner: Runner, script: Script) -> None:
    """Lines that are no JSON, unknown types, odd shapes and a NUL byte neither end nor change a run."""
    body = r"""
for line in ("", "npm notice", "[1, 2]", '"x"', '{"type": 5}', '{"type": "assistant", "message": 7}', "[" * 100000):
    print(line, flush=True)
say(type="assistant", message={"content": [1, {"type": "text", "text": 3}, {"type": "tool_use", "input": "no"}]})
say(type="user", message={"content": [None, {"type": "tool_result", "tool_use_id": 4, "content": [{"type": 1}]}]})
say(type="stream_event", event={})
result("a\0b")
"""
    assert (await run(runner, script, body)).output == "a\0b"


LOST = """
if resumed:
    refuse("", session_id=resumed)
    sys.exit("No conversation found with session ID: " + resumed)
result("fresh: " + prompt)
"""


async def test_a_lost_session_is_not_reported_as_one(runner: Runner, script: Script) -> None:
    """S-04: the CLI echoes the id it was asked for and says the cause on stderr only; the fresh run has its own id."""
    done = await run(runner, script, LOST, resume_session_id="s-0")
    assert (done.status, done.session_id, done.retired_session_id) == (COMPLETED, "s-1", "s-0")
    assert done.output.startswith("fresh: Note:")
    assert done.output.endswith("go")


async def test_after_a_tool_there_is_no_second_try(runner: Runner, script: Script) -> None:
    """A run that has already acted is never done again from the start."""
    used = 'say(type="assistant", message={"content": [{"type": "tool_use", "id": "1", "name": "Bash", "input": {}}]})'
    done = await run(runner, script, f"{used}\n{LOST}", resume_session_id="s-0")
    assert (done.status, done.retired_session_id) == (FAILED, "")
    assert len(runner.of(base.ToolUse)) == 1


async def test_an_oversized_replay_starts_fresh(
    runner: Runner, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed history that comes back as one line above the limit is given up, and the next run is whole."""
    monkeypatch.setattr(process.ManagedProcess.lines, "__defaults__", (100_000,))
    body = 'if resumed:\n    say(type="log", text="z" * 300_000)\n    time.sleep(600)\nresult("fresh")\n'
    done = await run(runner, script, body, resume_session_id="s-0")
    assert (done.status, done.output, done.retired_session_id) == (COMPLETED, "fresh", "s-0")


async def test_an_oversized_line_in_a_new_session_fails(
    runner: Runner, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.ManagedProcess.lines, "__defaults__", (100_000,))
    done = await run(runner, script, 'say(type="log", text="z" * 300_000)\ntime.sleep(600)\n')
    assert (done.status, done.failure_reason) == (FAILED, protocol.REASON_EMPTY_OUTPUT)
    assert runner.survivors() == []


async def test_a_stop_keeps_session_and_usage(runner: Runner, script: Script) -> None:
    """X-05, X-17: what the stream told before the stop is reported; usage counts once a message."""
    body = """
for _ in range(3):
    say(type="assistant", message={"id": "same", "model": "m-1", "content": [{"type": "text", "text": "part"}],
        "usage": {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 4}})
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
    running = asyncio.create_task(run(runner, script, body))
    await until_async(lambda: len(runner.of(base.Text)) == 3)
    runner.stop.set()
    done = await running
    assert (done.status, done.session_id, done.failure_reason) == (CANCELLED, "s-1", protocol.REASON_CANCELLED)
    assert [(u.input_tokens, u.output_tokens, u.cache_read_tokens) for u in done.usage] == [(10, 1, 4)]
    assert runner.survivors() == []


async def test_a_stop_before_the_start_still_ends_at_once(runner: Runner, script: Script) -> None:
    runner.stop.set()
    done = await run(runner, script, "time.sleep(600)")
    assert done.status == CANCELLED


async def test_as_root_without_a_sandbox_it_says_what_to_do(
    runner: Runner, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_json, "is_root", lambda: True)
    del runner.env["IS_SANDBOX"]
    done = await run(runner, script, "result()")
    assert (done.status, done.failure_reason) == (FAILED, protocol.REASON_MISSING_CONFIG)
    assert "IS_SANDBOX" in done.error


async def test_a_missing_cli_says_so(runner: Runner) -> None:
    done = await runner.run(runner.spec("claude", ["/no/such/claude"]))
    assert (done.status, done.failure_reason) == (FAILED, protocol.REASON_MISSING_EXECUTABLE)
    assert "/no/such/claude" in done.error


def test_the_command_line(tmp_path: Path) -> None:
    """EX-06: prefix first, then own arguments, options, the machine's and the agent's arguments without owned flags."""
    spec = base.RunSpec(
        "claude",
        ["/opt/claude", "--profile", "x", "--output-format", "text"],
        tmp_path,
        {stream_json.EXTRA_ARGS_VARIABLE: "--add-dir '/a b' --print"},
        "go",
        model="m-1",
        custom_args=["--max-turns", "5", "--resume", "other", "--effort=max", "-p"],
        resume_session_id="s-0",
        mcp_config={},
        thinking_level="absurd",
    )
    assert build_argv(spec, tmp_path / "mcp.json") == [
        "/opt/claude", "--profile", "x",
        "-p", "--output-format", "stream-json", "--input-format", "stream-json", "--verbose",
        "--permission-mode", "bypassPermissions", "--disallowedTools", "AskUserQuestion", "--strict-mcp-config",
        "--model", "m-1", "--resume", "s-0", "--add-dir", "/a b", "--max-turns", "5",
        "--mcp-config", str(tmp_path / "mcp.json"),
    ]  # fmt: skip


def test_every_control_request_is_answered() -> None:
    for request in ({}, {"subtype": "can_use_tool"}, {"subtype": "hook_callback"}, {"subtype": 5}):
        assert answer_control({"request_id": "r", "request": request})["response"]["request_id"] == "r"
    assert answer_control({"request_id": "r", "request": "odd"})["type"] == "control_response"


def test_api_retries_are_shown() -> None:
    """Minutes of waiting for a busy model service are visible as activity, and are no failure by themselves."""
    state = StreamState("claude")
    event = {"type": "system", "subtype": "api_retry", "attempt": 2, "max_retries": 10}
    (shown,) = state.accept(event | {"error_status": 529, "error": "overloaded"})
    assert isinstance(shown, base.AgentError)
    assert "529 overloaded" in shown.content
    assert not state.has_result


async def test_an_echoed_session_id_is_no_session(runner: Runner, script: Script) -> None:
    """A CLI that fails before it began still names the session it was asked for; that one must not be stored."""
    early = HEAD[: HEAD.index("prompt = ")] + 'refuse("odd refusal", session_id=resumed)\nsys.exit(1)\n'
    done = await runner.run(runner.spec("claude", script(early), resume_session_id="s-0"))
    assert (done.status, done.session_id) == (FAILED, "")
