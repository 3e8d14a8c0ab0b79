"""Process trees: nothing that an agent starts outlives it, its stop, or its daemon."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from daemon_client import process
from daemon_client.process import LineTooLong, ManagedProcess, kill_survivors, read_lines, spawn, terminate_tree
from tests.daemon_client.agents.conftest import Runner, Script
from tests.support.wait import until_async

ROOT = Path(__file__).parents[3]

# A child in a session of its own, a daemonised grandchild without any environment, one that ignores SIGTERM.
HIDERS = """
import os, signal, subprocess, sys, time
mark, flag, stubborn = sys.argv[1], sys.argv[2], "stubborn" in sys.argv
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code, mark], start_new_session=True, stdout=subprocess.DEVNULL)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", mark], {})
    os._exit(0)
os.wait()
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
if "leave" in sys.argv:
    sys.exit(0)
time.sleep(600)
"""


async def first_line(started: ManagedProcess) -> bytes:
    async for line in started.lines():
        return line
    return b""


async def test_input_output_and_exit_code(runner: Runner) -> None:
    """The agent has its stdin, stdout, stderr, directory and environment, and its exit code is reported."""
    started = await spawn(["sh", "-c", "cat; pwd; echo oh >&2; exit 7"], cwd=runner.cwd, env=runner.env)
    await started.write(b"one\ntwo\n")
    started.close_stdin()
    assert [line async for line in started.lines()] == [b"one", b"two", str(runner.cwd).encode()]
    assert await started.wait() == 7
    assert await started.stderr_tail() == "oh\n"
    await started.release()


async def test_a_signal_is_reported_as_one(runner: Runner) -> None:
    started = await spawn(["sh", "-c", "kill -SEGV $$"], cwd=runner.cwd, env=runner.env)
    assert await started.wait() == -signal.SIGSEGV
    await started.release()


@pytest.mark.parametrize("name", ["no-such-agent", "/no/such/agent"])
async def test_a_missing_program_says_so(runner: Runner, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        await spawn([name], cwd=runner.cwd, env=runner.env)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_stop_ends_hidden_children(runner: Runner, script: Script, stubborn: bool) -> None:
    """X-04, X-15: also a child hidden by setsid, one daemonised without an environment, and one deaf to SIGTERM."""
    extra = [runner.mark, "flag", *(["stubborn"] if stubborn else [])]
    started = await spawn([*script(HIDERS), *extra], cwd=runner.cwd, env=runner.env)
    assert await first_line(started) == b"up"
    assert len(runner.survivors()) >= 3
    before = time.monotonic()
    assert await terminate_tree(started, 0.5)
    assert time.monotonic() - before < 5
    assert runner.survivors() == []
    await started.release()


async def test_the_grace_is_kept(runner: Runner) -> None:
    """An agent that needs a moment to write its state gets it; SIGKILL comes only when the grace is over."""
    marker = runner.cwd / "saved"
    code = f"trap 'sleep 0.6; touch {marker}; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    started = await spawn(["sh", "-c", code], cwd=runner.cwd, env=runner.env)
    await first_line(started)
    assert await terminate_tree(started, 30)
    assert marker.exists()
    assert started.returncode == 0
    await started.release()


async def test_what_an_agent_leaves_behind_ends_with_it(runner: Runner, script: Script) -> None:
    """Helpers that do not end by themselves are gone when the run is, and do not hold its output open."""
    started = await spawn([*script(HIDERS), runner.mark, "flag", "leave"], cwd=runner.cwd, env=runner.env)
    assert [line async for line in started.lines()] == [b"up"]
    assert await started.wait() == 0
    assert runner.survivors() == []
    await started.release()


async def test_many_runs_leak_nothing(runner: Runner) -> None:
    """After 30 runs with a helper each: no process, no open file and no thread more than after the first ones."""
    here = psutil.Process()

    async def once() -> None:
        started = await spawn(["sh", "-c", "sleep 600 & echo up"], cwd=runner.cwd, env=runner.env)
        assert [line async for line in started.lines()] == [b"up"]
        await started.wait()
        await started.release()

    await asyncio.gather(*(once() for _ in range(6)))
    files, threads = here.num_fds(), here.num_threads()
    for _ in range(4):
        await asyncio.gather(*(once() for _ in range(6)))
    assert here.num_fds() <= files + 2
    assert here.num_threads() <= threads + 2
    assert runner.survivors() == []


async def test_an_agent_that_kills_its_guard_gains_nothing(runner: Runner) -> None:
    """The process above the agent can be killed by it; what had left the agent's group is still found and ended."""
    env = runner.env | {process.TASK_VARIABLE: "task-1"}
    code = "setsid sleep 600 & sleep 0.2; echo up; kill -KILL $PPID; sleep 600"
    started = await spawn(["sh", "-c", code], cwd=runner.cwd, env=env)
    assert await started.wait() == -signal.SIGKILL
    assert await until_async(lambda: runner.survivors() == [])
    await started.release()


async def test_stderr_is_bounded_and_never_blocks(runner: Runner) -> None:
    """A megabyte of complaints neither stops the agent nor stays in memory; the end of it is kept."""
    code = "import sys; sys.stderr.write('x' * 1_000_000 + 'the cause'); print('done')"
    started = await spawn([sys.executable, "-c", code], cwd=runner.cwd, env=runner.env)
    assert [line async for line in started.lines()] == [b"done"]
    await started.wait()
    tail = await started.stderr_tail()
    assert len(tail) == process.STDERR_TAIL
    assert tail.endswith("the cause")
    await started.release()


async def test_long_lines_are_read_and_longer_ones_refused() -> None:
    """Lines far above the usual 64 KiB arrive whole; above the limit it is an error and not a hang."""
    stream = asyncio.StreamReader()
    stream.feed_data(b"a" * 300_000 + b"\r\nshort\nrest")
    stream.feed_eof()
    assert [len(line) async for line in read_lines(stream)] == [300_000, 5, 4]
    endless = asyncio.StreamReader()
    endless.feed_data(b"b" * 2000)
    with pytest.raises(LineTooLong):
        async for _ in read_lines(endless, limit=1000):
            pass


DAEMON = """
import asyncio, os, sys, threading
from daemon_client.process import spawn
async def main():
    env = dict(os.environ)
    if "detached" in sys.argv:
        env.pop("NOTHING", None)
    started = await spawn([sys.executable, *sys.argv[2:]], cwd="/", env=env, orphan_grace=float(sys.argv[1]))
    async for line in started.lines():
        print(started.pid, flush=True)
    await started.wait()
if os.environ.get("IN_THREAD"):
    worker = threading.Thread(target=lambda: asyncio.run(main()))
    worker.start()
    worker.join()
else:
    asyncio.run(main())
"""


def start_daemon(
    runner: Runner, script: Script, root: Path, *, grace: float, thread: bool = False
) -> subprocess.Popen[str]:
    agent = script(HIDERS, "hiders")[1]
    env = runner.env | {process.ROOT_VARIABLE: str(root), process.TASK_VARIABLE: "t", "PYTHONPATH": str(ROOT)}
    command = [*script(DAEMON, "daemon"), str(grace), agent, runner.mark, "flag", "stubborn"]
    return subprocess.Popen(
        command, env=env | ({"IN_THREAD": "1"} if thread else {}), stdout=subprocess.PIPE, text=True, cwd=root
    )


@pytest.mark.parametrize("thread", [False, True])
async def test_a_killed_daemon_takes_its_agents_with_it(
    runner: Runner, script: Script, tmp_path: Path, thread: bool
) -> None:
    """kill -9 of the daemon ends every tree by itself, whichever thread had started it."""
    daemon = start_daemon(runner, script, tmp_path, grace=0.2, thread=thread)
    assert daemon.stdout is not None
    assert await asyncio.to_thread(daemon.stdout.readline)
    daemon.kill()
    await asyncio.to_thread(daemon.wait)
    daemon.stdout.close()
    assert await until_async(lambda: runner.survivors() == [], 15)


async def test_a_restarted_daemon_ends_the_survivors(runner: Runner, script: Script, tmp_path: Path) -> None:
    """Daemon and guard both killed: the next daemon finds the rest by record and marker, before orphan recovery."""
    daemon = start_daemon(runner, script, tmp_path, grace=600)
    assert daemon.stdout is not None
    guard = int(await asyncio.to_thread(daemon.stdout.readline))
    assert str(guard) in (tmp_path / process.RECORDS).read_text()
    assert await kill_survivors(tmp_path) == []
    os.kill(guard, signal.SIGSTOP)  # it cannot do its work now
    daemon.kill()
    await asyncio.to_thread(daemon.wait)
    daemon.stdout.close()
    assert runner.survivors()
    assert guard in await kill_survivors(tmp_path, grace=0.2)
    assert await until_async(lambda: runner.survivors() == [])
    assert (tmp_path / process.RECORDS).read_text() == "[]"


async def test_a_living_daemon_is_left_alone(runner: Runner, tmp_path: Path) -> None:
    """Looking for survivors never touches the runs of this process, nor a number that was given to another process."""
    env = runner.env | {process.ROOT_VARIABLE: str(tmp_path)}
    started = await spawn(["sleep", "600"], cwd=runner.cwd, env=env)
    stranger = f'{{"process": "{os.getppid()}:1.00", "owner": "1:1.00", "task_id": ""}}'
    records = (tmp_path / process.RECORDS).read_text()
    (tmp_path / process.RECORDS).write_text(records.replace("]", f", {stranger}]"))
    assert await kill_survivors(tmp_path) == []
    assert started.returncode is None
    await terminate_tree(started, 1)
    await started.release()
    assert (tmp_path / process.RECORDS).read_text() == "[]"
    assert threading.active_count() < 60
