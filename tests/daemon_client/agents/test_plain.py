"""Any command as an agent: prompt in, lines out, exit code decides."""

from __future__ import annotations

import asyncio
import sys

import pytest

from daemon_client import protocol
from daemon_client.agents import base, launch
from daemon_client.agents.base import CANCELLED, COMPLETED, FAILED
from tests.daemon_client.agents.conftest import Runner, Script
from tests.support.wait import until_async


def shell(runner: Runner, code: str, prompt: str = "go", **options: object) -> base.RunSpec:
    return runner.spec("plain", ["sh", "-c", code, "agent"], prompt, **options)


async def test_the_prompt_comes_by_stdin_and_by_file(runner: Runner) -> None:
    """EX-05: lines stream as texts, stdout is the output; the prompt file is gone afterwards."""
    code = 'cat; echo; cat "$MULTICA_PROMPT_FILE"; echo; echo "$1"; basename "$MULTICA_PROMPT_FILE" > name'
    done = await runner.run(shell(runner, code, "do ünï\nthat", custom_args=["extra"]))
    assert (done.status, done.output) == (COMPLETED, "do ünï\nthat\ndo ünï\nthat\nextra")
    assert runner.of(base.Text)[0] == base.Text("do ünï\n")
    name = (runner.cwd / "name").read_text().strip()
    assert not list(runner.cwd.parent.rglob(name))


async def test_a_command_that_ignores_a_long_prompt(runner: Runner) -> None:
    """A command that never reads is no failure, however long the prompt."""
    done = await runner.run(shell(runner, "echo ok", "x" * 3_000_000))
    assert (done.status, done.output) == (COMPLETED, "ok")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("echo half; exit 3", protocol.REASON_PROCESS_FAILURE),
        ("echo 'fatal: Connection refused' >&2; exit 1", protocol.REASON_PROVIDER_NETWORK),
        ("echo 'HTTP 429 Too Many Requests' >&2; exit 1", protocol.REASON_PROVIDER_CAPACITY),
        ("kill -KILL $$", protocol.REASON_PROCESS_FAILURE),
        ("exec /no/such/thing", protocol.REASON_MISSING_EXECUTABLE),
        ("echo 'Connection refused'; exit 1", protocol.REASON_PROCESS_FAILURE),
    ],
)
async def test_other_exits_are_failures_with_a_reason(runner: Runner, code: str, reason: str) -> None:
    """RP-04: the exit code decides, stderr gives the reason; what was printed is text and neither output nor cause."""
    done = await runner.run(shell(runner, code))
    assert (done.status, done.failure_reason, done.output) == (FAILED, reason, "")
    assert done.error


async def test_a_command_that_closes_its_output_and_works_on(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the output is not the end of the run."""
    monkeypatch.setattr(launch, "EXIT_PATIENCE", 0.1)
    done = await runner.run(shell(runner, "echo said; exec >&- 2>&-; sleep 0.8; touch worked"))
    assert (done.status, done.output) == (COMPLETED, "said")
    assert (runner.cwd / "worked").exists()


async def test_a_helper_does_not_keep_the_run_open(runner: Runner) -> None:
    """A background child that holds stdout open ends with the command."""
    done = await runner.run(shell(runner, "sleep 600 & echo done"))
    assert (done.status, done.output) == (COMPLETED, "done")
    assert runner.survivors() == []


async def test_a_stop_ends_it(runner: Runner, script: Script) -> None:
    """X-04: also when it ignores SIGTERM, after the grace."""
    body = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    running = asyncio.create_task(runner.run(runner.spec("plain", script(body), stop_grace=0.3)))
    await until_async(lambda: runner.events)
    runner.stop.set()
    done = await running
    assert (done.status, done.failure_reason) == (CANCELLED, protocol.REASON_CANCELLED)
    assert runner.survivors() == []


async def test_secrets_are_masked_in_texts_output_and_error(runner: Runner) -> None:
    runner.env |= {"MY_API_KEY": "value-that-is-secret", "MULTICA_CUSTOM_ENV_NAMES": "PLAIN", "PLAIN": "custom-value-1"}
    done = await runner.run(shell(runner, 'echo "$MY_API_KEY and $PLAIN"; echo "$MY_API_KEY" >&2; exit 1'))
    said = f"{runner.events} {done}"
    assert "value-that-is-secret" not in said
    assert "custom-value-1" not in said
    assert base.Text("[redacted] and [redacted]\n") in runner.events


async def test_a_missing_command(runner: Runner) -> None:
    done = await runner.run(runner.spec("plain", ["no-such-command"]))
    assert (done.status, done.failure_reason) == (FAILED, protocol.REASON_MISSING_EXECUTABLE)


async def test_a_flood_of_output_is_bounded(runner: Runner) -> None:
    """The deliverable is the last MiB; memory does not grow with what a command prints."""
    code = "for i in range(40000): print(f'{i:06d}' + 'x' * 60)"
    done = await runner.run(runner.spec("plain", [sys.executable, "-c", code]))
    assert done.status == COMPLETED
    assert len(done.output) <= 1024 * 1024
    assert done.output.endswith("039999" + "x" * 60)
