"""The stack and the daemon of the demo, as processes that never outlive it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from multica import env
from multica.embedded import process, runfile

STACK_LIMIT, ACCOUNT_LIMIT, DAEMON_LIMIT, STOP_LIMIT = 150.0, 60.0, 60.0, 20.0


class DemoFailed(Exception):
    """The demo cannot go on; the text is for the person at the terminal."""


class Processes:
    """Starts `up` and the daemon in the demo's directory and stops them again. Main thread only."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        self.state, self.home, self.logs = folder / "state", folder / "home", folder / "log"
        for each in (self.state, self.home, self.logs):
            each.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.stack: process.Child | None = None
        self.daemon: process.Child | None = None
        self.account_maker: subprocess.Popen[str] | None = None
        self.url = ""

    # -- the stack --

    def start_stack(self, port: int) -> None:
        """Start the whole stack and wait until it is ready; DemoFailed if it does not get so."""
        arguments = ["up", *(["--port", str(port)] if port else [])]
        self.stack = self._spawn("stack", manage(*arguments), self._stack_environment())
        self._wait("the stack", self.stack, STACK_LIMIT, self._web_started)
        # The tables are there once the web process is started: both get ready side by side.
        self.account_maker = subprocess.Popen(
            manage("demo", "--prepare"),
            env=self._stack_environment(),
            cwd=env.CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._wait("the stack", self.stack, STACK_LIMIT, self._stack_ready)

    def _stack_environment(self) -> dict[str, str]:
        return {**os.environ, "MULTICA_STATE_DIR": str(self.state), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}

    def _web_started(self) -> bool:
        content = runfile.read(self.state) or {}
        return "web" in content.get("pids", {})

    def _stack_ready(self) -> bool:
        content = runfile.read(self.state)
        if not content or not content.get("ready"):
            return False
        self.url = str(content["http_url"])
        return True

    def account(self) -> dict[str, Any]:
        """The login, token and workspace of this run, made by a process that talks to the stack's database."""
        assert self.account_maker is not None
        try:
            output, errors = self.account_maker.communicate(timeout=ACCOUNT_LIMIT)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the demo's account was not made within {ACCOUNT_LIMIT:.0f} s") from None
        if self.account_maker.returncode != 0:
            raise DemoFailed(f"the demo's account could not be made:\n{errors.strip()[-1500:]}")
        account: dict[str, Any] = json.loads(output.splitlines()[-1])
        return account

    # -- the daemon --

    def start_daemon(self, token: str) -> None:
        """Log this machine in, with a home of its own, and start the daemon in the foreground of its own session."""
        self._daemon_command("login", "--token", "-", "--server-url", self.url, given=f"{token}\n")
        argv = [*multica("daemon", "start", "--foreground", "--health-port", "0")]
        self.daemon = self._spawn("daemon", argv, self._daemon_environment())

    def daemon_ready(self, look: Callable[[], bool]) -> None:
        """Wait until `look` sees the daemon's runtime on the server."""
        assert self.daemon is not None
        self._wait("the daemon", self.daemon, DAEMON_LIMIT, look)

    def _daemon_environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR", "TZ") if name in os.environ}
        return {
            **kept,
            "HOME": str(self.home),
            "MULTICA_HOME": str(self.home / ".multica"),
            "MULTICA_STATE_DIR": str(self.state),
            "MULTICA_WORKSPACES_ROOT": str(self.folder / "workspaces"),
            "PYTHONUNBUFFERED": "1",
        }

    def _daemon_command(self, *arguments: str, given: str = "") -> None:
        done = subprocess.run(
            multica(*arguments),
            input=given,
            env=self._daemon_environment(),
            cwd=env.CHECKOUT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise DemoFailed(f"multica {arguments[0]} failed:\n{(done.stdout + done.stderr).strip()[-1500:]}")

    # -- both --

    def check(self) -> None:
        """DemoFailed when one of them has ended by itself."""
        for name, child in (("the stack", self.stack), ("the daemon", self.daemon)):
            if child is not None and child.poll() is not None:
                raise DemoFailed(f"{name} ended with status {child.poll()}")

    def stop(self) -> None:
        """End the daemon, then the stack; returns when both are gone."""
        if self.account_maker is not None and self.account_maker.poll() is None:
            self.account_maker.kill()
            self.account_maker.wait()
        for child in (self.daemon, self.stack):
            if child is not None:
                process.stop(child, signal.SIGTERM, STOP_LIMIT)

    def tails(self) -> str:
        """The end of every log, for a failure."""
        return "\n".join(
            f"--- end of {path}\n{process.tail(path, 25)}" for path in sorted(self.logs.glob("*.log")) if path.is_file()
        )

    def _spawn(self, name: str, argv: list[str], environment: Mapping[str, str]) -> process.Child:
        with (self.logs / f"{name}.log").open("wb") as output:
            return process.spawn(argv, output=output, env=environment, cwd=env.CHECKOUT)

    def _wait(self, name: str, child: process.Child, limit: float, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + limit
        while not ready():
            if child.poll() is not None:
                raise DemoFailed(f"{name} ended with status {child.poll()} before it was ready")
            if time.monotonic() > end:
                raise DemoFailed(f"{name} was not ready after {limit:.0f} s")
            time.sleep(0.05)


def manage(*arguments: str) -> list[str]:
    return [sys.executable, str(env.CHECKOUT / "manage.py"), *arguments]


def multica(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "daemon_client", *arguments]
