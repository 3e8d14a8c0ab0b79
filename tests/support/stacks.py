"""Stacks of processes for tests: embedded services in a holder, all of `manage.py up`, and what is left of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.support import wait

ROOT = Path(__file__).resolve().parents[2]
HOLDER = Path(__file__).with_name("holder.py")
ORDINARY = "nobody"


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without the addresses of the test run, which a stack of its own must not see."""
    hidden = ("DATABASE_URL", "REDIS_URL", "MULTICA_", "DJANGO_SETTINGS_MODULE", "PYTEST")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    return {**kept, "PYTHONWARNINGS": "default", **extra}


@dataclass(frozen=True)
class Account:
    """Who starts the holder: with which interpreter, as which user, with which additions to the environment."""

    python: str
    user: str | None = None
    env: dict[str, str] = field(default_factory=dict)


@cache
def interpreter_for(user: str) -> tuple[str, str] | None:
    """An interpreter of our version that `user` may run, and the path of our packages for it; None if there is none."""
    packages = str(Path(psycopg.__file__).parents[1])
    for python in (sys.executable, "/usr/bin/python3"):
        probe = f"import psycopg, psutil, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
        with contextlib.suppress(OSError):
            tried = subprocess.run(
                [python, "-c", probe],
                user=user,
                extra_groups=[],
                env={"PYTHONPATH": packages, "PATH": os.environ["PATH"]},
                capture_output=True,
                check=False,
                cwd="/",
            )
            if tried.returncode == 0:
                return python, packages
    return None


def accounts() -> dict[str, Account | None]:
    """Every way in which services can be started on this machine; None where it cannot be tried."""
    if os.geteuid() != 0:
        return {"ordinary": Account(sys.executable)}
    found = interpreter_for(ORDINARY)
    ordinary = Account(found[0], ORDINARY, {"PYTHONPATH": found[1]}) if found else None
    dropped = Account(sys.executable, None, {"MULTICA_EMBEDDED_USER": ORDINARY})
    return {"root": Account(sys.executable), "root-dropped": dropped, "ordinary": ordinary}


class Holder:
    """Embedded services held by a process of their own."""

    def __init__(self, state: Path, account: Account, *, wait_seconds: float = 0.5) -> None:
        argv = [account.python, str(HOLDER), str(state), str(wait_seconds)]
        self.process = subprocess.Popen(
            argv,
            user=account.user,
            extra_groups=[] if account.user else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**account.env),
            cwd="/",
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.answer: dict[str, Any] = json.loads(self.line) if self.line else {}

    @property
    def refusal(self) -> str:
        """Its words when it did not start; waits for its end."""
        return self.process.communicate(timeout=30)[1].decode()

    @property
    def pids(self) -> dict[str, int]:
        return dict(self.answer["pids"])

    @property
    def database_url(self) -> str:
        return str(self.answer["addresses"]["DATABASE_URL"])

    def close(self) -> int:
        """Ends it the friendly way and returns its status."""
        self.process.communicate(timeout=60)
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids: dict[str, int], seconds: float = 10.0) -> None:
    """Waits until every process is gone; AssertionError names those that stay."""
    wait.until(lambda: not left(pids), seconds, f"still there: {pids}")


def left(pids: dict[str, int]) -> list[str]:
    return [name for name, pid in pids.items() if alive(pid)]


def write_rows(url: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept SELECT generate_series(1, %s)", [count])


def count_rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert row is not None
    return int(row[0])


class Up:
    """One `manage.py up`, its output and what its run.json says."""

    def __init__(self, state: Path, *arguments: str, **env: str) -> None:
        self.state = state
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(MULTICA_STATE_DIR=str(state), **env),
            cwd=ROOT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip())

    def output(self) -> str:
        return "\n".join(self.lines)

    def says(self, words: str, seconds: float = 60.0) -> str:
        """The first line with `words`, once it was printed."""
        found = wait.until(
            lambda: [line for line in self.lines if words in line] or self.process.poll() is not None,
            seconds,
            f"{words!r} in:\n{self.output()}",
        )
        if isinstance(found, bool):
            self._reader.join(10)
            found = [line for line in self.lines if words in line]
        assert found, f"ended with {self.process.returncode} without saying {words!r}:\n{self.output()}"
        return found[0]

    def ready(self) -> str:
        self.says("ready: http")
        return str(self.run_json()["http_url"])

    def run_json(self) -> dict[str, Any]:
        return dict(json.loads((self.state / "run.json").read_text()))

    def pids(self) -> dict[str, int]:
        return {"up": self.process.pid, **self.run_json()["pids"]}

    def stop(self, number: int = signal.SIGINT, seconds: float = 30.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(seconds)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@contextlib.contextmanager
def up(state: Path, *arguments: str, **env: str) -> Iterator[Up]:
    """A stack that is stopped at the end of the block whatever happened in it."""
    stack = Up(state, *arguments, **env)
    try:
        yield stack
    finally:
        stack.stop()


def get(url: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON of one GET; status 0 when nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError as error:
        return 0, {"error": str(error)}


def manage(state: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """One management command beside (or without) a stack of `state`."""
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=environment(MULTICA_STATE_DIR=str(state), **env),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
