"""Real processes for end-to-end tests: a database of their own, web replicas, a sweeper, daemons.

Everything is started by the pytest process, dies with it however that ends, and is ended by pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
from psycopg.rows import dict_row

from multica.embedded import process
from multica.embedded.services import Services
from tests.support.services import FAST, with_database
from tests.support.site_database import CHECKOUT, manage, prepare_database, private_database, run_command, token_of
from tests.support.waits import until

SCALE = 0.05
READY_SECONDS = 60.0
# Databases 0 to 8 of a shared Valkey belong to the workers' own tests.
_FIRST_REDIS_DATABASE = 9

Row = dict[str, Any]


class Child:
    """One process of the product. Its output goes to `log`; `stop` and `kill` return when it is gone."""

    def __init__(self, name: str, argv: list[str], env: Mapping[str, str], log: Path, cwd: Path = CHECKOUT) -> None:
        self.name, self.argv, self.env, self.log, self.cwd = name, argv, dict(env), log, cwd
        self.popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.popen is not None, f"{self.name} was not started"
        return self.popen.pid

    @property
    def alive(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def start(self, keep: tuple[int, ...] = ()) -> Self:
        assert not self.alive
        with self.log.open("ab") as output:
            self.popen = process.spawn(
                self.argv, output=output, die_signal=signal.SIGKILL, env=self.env, cwd=self.cwd, keep=keep
            )
        return self

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def kill(self) -> None:
        """SIGKILL: no time to say goodbye."""
        self._end(signal.SIGKILL)

    def stop(self, grace: float = 15.0) -> None:
        self._end(signal.SIGTERM, grace)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: int, grace: float = 10.0) -> None:
        if self.popen is None:
            return
        process.stop(self.popen, number, grace)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class ApiError(AssertionError):
    """An answer of 400 or more. An AssertionError, so that a bounded wait may see one on the way."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status} {body[:600]}")
        self.status, self.body = status, body


@dataclass(frozen=True)
class Api:
    """A person's or a daemon's view of the server: JSON over HTTP with a bearer token."""

    base: str
    token: str
    workspace_id: str = ""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if self.workspace_id:
            headers["X-Workspace-ID"] = self.workspace_id
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise ApiError(method, path, error.code, error.read().decode("utf-8", "replace")) from None
        return json.loads(text) if text else None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, {} if body is None else body)

    def put(self, path: str, body: Any) -> Any:
        return self.call("PUT", path, body)


class Server(Child):
    """One web replica on a port that it keeps over restarts."""

    port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self) -> Self:
        """Start and return; `wait_ready` says when it answers."""
        with socket.create_server(("127.0.0.1", self.port), backlog=1024) as listener:
            self.port = listener.getsockname()[1]
            self.argv = [*manage("serve"), "--fd", str(listener.fileno())]
            self.start(keep=(listener.fileno(),))
        return self

    def wait_ready(self) -> Self:
        def ready() -> bool:
            assert self.alive, f"{self.name} ended:\n{process.tail(self.log, 40)}"
            try:
                with urllib.request.urlopen(f"{self.url}/ready", timeout=5) as answer:
                    return json.load(answer)["status"] == "ready"
            except urllib.error.HTTPError as error:
                with error:
                    raise AssertionError(error.read().decode("utf-8", "replace")) from None

        until(ready, READY_SECONDS, f"{self.name} is ready", 0.05)
        return self


@dataclass(frozen=True)
class Account:
    """One person with a workspace of their own and a personal token."""

    user_id: str
    workspace_id: str
    token: str


@dataclass
class Site:
    """Database, cache, web replicas and sweeper. Use as a context manager.

    `own_services`: PostgreSQL and Valkey of its own, which a test may stop. `scale`: MULTICA_TIME_SCALE of every
    process. `settings`: more environment.
    """

    folder: Path
    scale: float = SCALE
    replicas: int = 1
    own_services: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    servers: list[Server] = field(default_factory=list)
    services: Services | None = None
    _observer: psycopg.Connection[Row] | None = None

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._look_for_survivors)
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    # -- life --

    def _start(self) -> None:
        (self.folder / "state").mkdir(parents=True)
        if self.own_services:
            self.services = self._stack.enter_context(Services(self.folder / "services", settings=FAST))
            self.addresses = self.services.addresses()
        else:
            self.addresses = {
                "DATABASE_URL": self._stack.enter_context(private_database()),
                "REDIS_URL": _shared_redis(),
            }
        self.env = self._environment()
        if self.own_services:
            prepare_database(self.env_of("command"))
        self._stack.callback(self._close_observer)
        self._accounts = self._read_accounts()
        for number in range(self.replicas):
            server = Server(f"web-{number}", [], self.env_of("web"), self.folder / f"web-{number}.log")
            self._stack.callback(server.stop, 5.0)
            self.servers.append(server.serve())
        self.sweeper = Child("sweeper", manage("runsweeper"), self.env_of("sweeper"), self.folder / "sweeper.log")
        self._stack.callback(self.sweeper.stop, 5.0)
        self.sweeper.start()
        for server in self.servers:
            server.wait_ready()

    def _look_for_survivors(self) -> None:
        left = marked("MULTICA_STATE_DIR", str(self.folder / "state"))
        assert not left, f"processes outlive their site: {left}"

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        return {
            **kept,
            **self.addresses,
            "MULTICA_TIME_SCALE": str(self.scale),
            "MULTICA_STATE_DIR": str(self.folder / "state"),
            "MULTICA_SECRET_KEY": "e2e-0123456789-abcdefghijklmnopqrstuvwxyz-0123456789",
            "MULTICA_CHANNEL_PREFIX": f"e2e-{self.folder.name}",
            "DJANGO_SETTINGS_MODULE": "multica.settings",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": os.environ.get("PYTHONDONTWRITEBYTECODE", ""),
            **self.settings,
        }

    def env_of(self, role: str) -> dict[str, str]:
        return {**self.env, "MULTICA_ROLE": role}

    def _read_accounts(self) -> list[Account]:
        look = """SELECT u.id AS user_id, w.id AS workspace_id, right(u.username, -7) AS number
                  FROM "user" u JOIN member m ON m.user_id = u.id JOIN workspace w ON w.id = m.workspace_id"""
        return [
            Account(str(row["user_id"]), str(row["workspace_id"]), token_of(row["number"])) for row in self.query(look)
        ]

    def command(self, *arguments: str) -> str:
        """Run a management command of this site to its end; its output. AssertionError when it fails."""
        return run_command(self.env_of("command"), *arguments)

    # -- use --

    def account(self) -> Account:
        """A person and a workspace that no other test has."""
        return self._accounts.pop()

    def query(self, text: str, *parameters: Any) -> list[Row]:
        """Look into the database, read only; for what no API shows."""
        # A connection that a restart of the database ended is found out by using it: one more try is needed then.
        for last in (False, True):
            try:
                return self._observe().execute(text, parameters).fetchall()
            except psycopg.OperationalError as error:
                self._close_observer()
                if last:
                    raise AssertionError(f"the database is away: {error}") from error
        raise AssertionError

    def _observe(self) -> psycopg.Connection[Row]:
        if self._observer is None:
            self._observer = psycopg.connect(
                self.addresses["DATABASE_URL"],
                autocommit=True,
                row_factory=dict_row,
                application_name="e2e-observer",
                options="-c default_transaction_read_only=on",
            )
        return self._observer

    def _close_observer(self) -> None:
        if self._observer is not None:
            self._observer.close()
            self._observer = None

    def logs(self) -> str:
        """The end of every log, for a failed test."""
        paths = sorted(self.folder.rglob("*.log"))
        return "\n".join(f"--- {path.name}\n{process.tail(path, 60)}" for path in paths if path.is_file())


def _shared_redis() -> str:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    index = int(worker.removeprefix("gw") or 0) if worker else 0
    return with_database(os.environ["MULTICA_TEST_REDIS_URL"], _FIRST_REDIS_DATABASE + index % 6)


# --- daemons -------------------------------------------------------------------------------------------------------

_LAUNCHER = """#!/bin/sh
exec {python} -I -S {script} {socket} "$@"
"""
_MULTICA = """#!/bin/sh
PYTHONPATH={checkout} exec {python} -m daemon_client "$@"
"""


class Daemon(Child):
    """A daemon as a user would run it: HOME, config file and workspaces root of its own."""

    def __init__(self, folder: Path, server_url: str, token: str, scale: float, settings: Mapping[str, str]) -> None:
        self.home, self.root = folder / "home", folder / "work"
        self.health_port = free_port()
        self.root.mkdir(parents=True, exist_ok=True)
        _write_home(self.home, server_url, token)
        env = {
            "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(CHECKOUT),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "IS_SANDBOX": "1",
            "MULTICA_TIME_SCALE": str(scale),
            "MULTICA_WORKSPACES_ROOT": str(self.root),
            "MULTICA_DAEMON_HEALTH_PORT": str(self.health_port),
            "PYTHONUNBUFFERED": "1",
            **settings,
        }
        argv = [sys.executable, "-m", "daemon_client", "daemon", "start", "--foreground"]
        super().__init__("daemon", argv, env, folder / "daemon.log", folder)

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/health", timeout=5) as answer:
            return dict(json.load(answer))

    def wait_ready(self, seconds: float = 30.0) -> Self:
        def running() -> bool:
            assert self.alive, f"the daemon ended:\n{process.tail(self.log, 40)}"
            return self.health()["status"] == "running"

        until(running, seconds, "the daemon runs", 0.05)
        return self

    def agents(self) -> list[psutil.Process]:
        """Every live process that carries this daemon's mark: agents, their guards and whatever they started."""
        return marked("MULTICA_TASK_WORKSPACES_ROOT", str(self.root))


def _write_home(home: Path, server_url: str, token: str) -> None:
    (home / ".multica").mkdir(parents=True, exist_ok=True)
    (home / "bin").mkdir(exist_ok=True)
    config = home / ".multica" / "config.json"
    config.write_text(json.dumps({"server_url": server_url, "token": token}), "utf-8")
    config.chmod(0o600)
    (home / ".gitconfig").write_text("[user]\n\tname = Tester\n\temail = tester@example.test\n", "utf-8")
    write_program(home / "bin" / "multica", _MULTICA.format(python=sys.executable, checkout=CHECKOUT))


def write_program(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    path.chmod(0o755)
    return path


def write_launcher(path: Path, script: Path, socket_path: Path) -> Path:
    """An executable that runs the scripted agent: what a runtime profile names as its command."""
    return write_program(path, _LAUNCHER.format(python=sys.executable, script=script, socket=socket_path))


def marked(variable: str, value: str) -> list[psutil.Process]:
    """Live processes with this variable in their environment."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if each.environ().get(variable) == value and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found
