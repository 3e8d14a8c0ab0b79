"""The command line as a newcomer uses it: real processes against a fake server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon_client.config import ConfigFile, load_settings, normalise_server_url, parse_duration
from daemon_client.errors import ConfigError
from tests.support.fake_server import TOKEN, FakeServer
from tests.support.wait import until_async

AGENT = """#!/bin/sh
case "$*" in *--version*) echo 1.2.3; exit 0;; esac
cat > /dev/null
echo working
echo done
"""


class Shell:
    """One user's home, and the command in it."""

    def __init__(self, server: FakeServer, home: Path) -> None:
        self.server, self.home = server, home
        self.env = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "MULTICA_DAEMON_HEALTH_PORT": "0",
            "MULTICA_TIME_SCALE": "0.05",
            "MULTICA_STATE_DIR": str(home / "nowhere"),
        }

    async def run(self, *arguments: str, code: int = 0, **env: str) -> tuple[str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "daemon_client",
            *arguments,
            env=self.env | env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == code, (process.returncode, out.decode(), err.decode())
        return out.decode(), err.decode()

    async def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads((await self.run(*arguments, "--output", "json", code=code))[0])

    async def login(self) -> None:
        await self.run("login", "--server-url", self.server.url, "--token", TOKEN)


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    async with FakeServer() as server:
        script = tmp_path / "agent"
        script.write_text(AGENT)
        script.chmod(0o755)
        server.profiles = [{"id": "p1", "protocol_family": "plain", "command_name": str(script), "enabled": True}]
        shell = Shell(server, tmp_path)
        yield shell
        state = tmp_path / ".multica" / "daemon.pid"
        if state.exists() and state.read_text().strip():
            psutil.Process(int(state.read_text())).kill()


async def test_login_start_work_status_stop(shell: Shell) -> None:
    """D-23: the four commands of the first day, with a real agent process in between."""
    assert "ada@example.org" in (await shell.run("login", "--server-url", shell.server.url, "--token", TOKEN))[0]
    config = shell.home / ".multica" / "config.json"
    assert config.stat().st_mode & 0o077 == 0
    started = await shell.json("daemon", "start")
    assert started["status"] == "running"
    assert os.getsid(started["pid"]) == started["pid"], "closing the terminal must not end it"
    task = shell.server.add_task()
    await shell.server.hint()
    await until_async(lambda: task.ended, 30)
    assert (task.status, task.result.get("output", "").strip()) == ("completed", "working\ndone"), task.result
    status = await shell.json("daemon", "status")
    assert status["pid"] == started["pid"]
    _, error = await shell.run("daemon", "start", code=1)
    assert str(started["pid"]) in error
    await shell.run("daemon", "stop")
    assert not psutil.pid_exists(started["pid"])
    assert shell.server.calls("deregister")
    assert await shell.json("daemon", "status", code=1) == {"status": "stopped"}
    assert (await shell.json("daemon", "stop"))["status"] == "stopped"


STUBBORN = """#!/bin/sh
case "$*" in *--version*) echo 1.2.3; exit 0;; esac
trap '' TERM
setsid sleep 1000 &
echo started
while :; do sleep 1; done
"""


def tree_of(task_id: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("MULTICA_TASK_ID") == task_id:
                found.append(process)
    return found


async def test_a_cancel_leaves_no_process(shell: Shell) -> None:
    """X-04, X-15: an agent that ignores SIGTERM and hides a child in a session of its own: all gone, then acknowledged,
    with what was said before still stored."""
    (shell.home / "agent").write_text(STUBBORN)
    await shell.login()
    await shell.run("daemon", "start")
    task = shell.server.add_task()
    await shell.server.hint()
    await until_async(lambda: task.messages and len(tree_of(task.id)) >= 2, 30)
    task.status = "cancelled"
    await until_async(lambda: task.acks, 30)
    assert not tree_of(task.id)
    assert task.messages[1]["content"].strip() == "started"
    await shell.run("daemon", "stop")


async def test_survivors_of_a_killed_daemon_are_ended_before_recovery(shell: Shell) -> None:
    """D10: the new daemon finds and kills the agent of the old one; only then are its orphans recovered."""
    (shell.home / "agent").write_text(STUBBORN)
    await shell.login()
    first = await shell.json("daemon", "start")
    task = shell.server.add_task()
    await shell.server.hint()
    await until_async(lambda: task.messages and len(tree_of(task.id)) >= 2, 30)
    os.kill(first["pid"], signal.SIGKILL)
    alive_at_recovery: list[int] = []
    shell.server.on_recover = lambda: alive_at_recovery.append(len(tree_of(task.id)))
    await shell.run("daemon", "start")
    await until_async(lambda: task.ended, 30)
    assert task.result["failure_reason"] == "runtime_recovery"
    assert alive_at_recovery == [0]
    await shell.run("daemon", "stop")


async def test_a_killed_daemon_leaves_no_lock(shell: Shell) -> None:
    await shell.login()
    first = await shell.json("daemon", "start")
    os.kill(first["pid"], signal.SIGKILL)
    await until_async(lambda: not psutil.pid_exists(first["pid"]))
    second = await shell.json("daemon", "start")
    assert second["pid"] != first["pid"]
    assert second["daemon_id"] == first["daemon_id"]


async def test_foreground_ends_with_a_signal(shell: Shell) -> None:
    await shell.login()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "daemon_client", "daemon", "start", "--foreground",
        env=shell.env, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await until_async(lambda: shell.server.claims(), 30)
    process.send_signal(signal.SIGINT)
    _, log = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, log.decode()
    assert TOKEN not in log.decode()


async def test_exit_codes(shell: Shell) -> None:
    await shell.run("daemon", "start", code=3)
    await shell.run("login", "--token", "nonsense", "--server-url", shell.server.url, code=3)
    await shell.run("login", "--token", "mul_wrong", "--server-url", shell.server.url, code=3)
    await shell.run("login", "--token", TOKEN, "--server-url", "http://127.0.0.1:9", code=2)
    await shell.run("login", code=2)
    await shell.run("config", "set", "poll_interval", "often", code=1)
    assert not (shell.home / ".multica" / "config.json").exists()


async def test_a_refused_token_is_told_at_the_start(shell: Shell) -> None:
    await shell.login()
    shell.server.token = "mul_revoked"
    _, error = await shell.run("daemon", "start", code=1)
    assert "refuses the token" in error


async def test_nothing_of_this_inside_a_task(shell: Shell) -> None:
    for command in (("daemon", "start"), ("daemon", "stop"), ("login", "--token", TOKEN)):
        _, error = await shell.run(*command, code=1, MULTICA_TASK_CONFIG_ROOT=str(shell.home))
        assert "task" in error


async def test_config(shell: Shell) -> None:
    await shell.login()
    await shell.run("config", "set", "max_concurrent_tasks", "3")
    await shell.run("config", "set", "poll_interval", "1m30s")
    shown = await shell.json("config", "show")
    assert shown["token"] == "set"
    assert shown["max_concurrent_tasks"] == 3
    assert "there is no setting" in (await shell.run("config", "set", "colour", "red", code=1))[1]
    assert "multica login" in (await shell.run("config", "set", "token", "x", code=1))[1]
    settings = load_settings(shell.env)
    assert (settings.max_concurrent_tasks, settings.poll_interval) == (3, 90.0)
    settings = load_settings(shell.env | {"MULTICA_DAEMON_POLL_INTERVAL": "5s"}, overrides={"max_concurrent_tasks": 9})
    assert (settings.max_concurrent_tasks, settings.poll_interval) == (9, 5.0)


async def test_help_is_for_newcomers(shell: Shell) -> None:
    out, _ = await shell.run("--help")
    assert "multica login" in out
    assert "daemon" in out
    for command in ("login", "daemon", "config"):
        assert (await shell.run(command, "--help"))[0]


async def test_the_daemon_needs_no_django(shell: Shell) -> None:
    program = (
        "import sys, daemon_client.engine.supervisor, daemon_client.__main__, daemon_client.cli.daemon;"
        "bad = {'django', 'psycopg', 'channels', 'celery', 'redis', 'queue_app'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, env=shell.env)
    assert await asyncio.wait_for(process.wait(), 30) == 0


@pytest.mark.parametrize(
    ("text", "seconds"), [("15s", 15), ("1h30m", 5400), ("500ms", 0.5), ("1.5d", 129600), ("14d", 1209600), ("0", 0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "1h 30m", "-5s", "5x", "1h30"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("ws://localhost:8080/ws", "http://localhost:8080"),
        ("wss://x.example/ws/", "https://x.example"),
        ("https://x.example/prefix/", "https://x.example/prefix"),
        ("http://x.example/prefix/ws?a=b#c", "http://x.example/prefix/ws"),
    ],
)
def test_server_urls(given: str, base: str) -> None:
    assert normalise_server_url(given) == base


@pytest.mark.parametrize("text", ["localhost:8080", "ftp://x", "", "http://"])
def test_what_is_no_server_url(text: str) -> None:
    with pytest.raises(ConfigError):
        normalise_server_url(text)


def test_profiles_keep_their_own_files(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    ConfigFile(tmp_path / ".multica" / "profiles" / "work" / "config.json", {"token": "mul_w"}).save()
    work, plain = load_settings(env, profile="work"), load_settings(env)
    assert (work.token, plain.token) == ("mul_w", "")
    assert work.daemon_id == plain.daemon_id
    assert work.health_port != plain.health_port == 19514
    assert work.workspaces_root != plain.workspaces_root
    with pytest.raises(ConfigError):
        load_settings(env, profile="../evil")


def test_a_tasks_token_never_becomes_the_daemons(tmp_path: Path) -> None:
    assert load_settings({"HOME": str(tmp_path), "MULTICA_TOKEN": "mat_x"}).token == ""


def test_a_bad_setting_names_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="MULTICA_DAEMON_POLL_INTERVAL"):
        load_settings({"HOME": str(tmp_path), "MULTICA_DAEMON_POLL_INTERVAL": "soon"})


@pytest.mark.parametrize(("age", "found"), [(0.0, True), (3600.0, False)])
def test_the_launchers_address_is_found(tmp_path: Path, age: float, found: bool) -> None:
    """While the stack lives; its file outlives a kill, and its process id may belong to anybody then."""
    me = psutil.Process()
    state = {"http_url": "http://127.0.0.1:4711", "pid": me.pid, "started": me.create_time() - age}
    (tmp_path / "run.json").write_text(json.dumps(state))
    env = {"HOME": str(tmp_path), "MULTICA_STATE_DIR": str(tmp_path)}
    assert load_settings(env).server_url == ("http://127.0.0.1:4711" if found else "http://localhost:8080")
