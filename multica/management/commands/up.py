"""`manage.py up`: the whole stack on this machine, one Ctrl-C to end it."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, connection

from multica import databases, env
from multica.embedded import runfile
from multica.embedded.errors import EmbeddedError
from multica.embedded.services import Services
from multica.management.commands.serve import DEFAULT_PORT
from multica.supervisor import Console, Program, Service, StopRequested, Supervisor, on_signals, request_stop

PORTS_TRIED = 100
LOOK_EVERY = 0.2


class Command(BaseCommand):
    help = "Run the whole stack: database and cache unless given, migrations, web, sweeper, worker. Ctrl-C ends all."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default=os.environ.get("MULTICA_HOST", "127.0.0.1"))
        port = int(os.environ.get("MULTICA_PORT") or 0)
        parser.add_argument("--port", type=int, default=port, help="default: 8080, or the next free one")
        programs = ["sweeper", "worker"]
        parser.add_argument("--without", action="append", default=[], choices=programs, help="leave a program out")
        parser.add_argument("--ready-timeout", type=float, default=120.0, help="seconds the web process may take")

    def handle(self, *_args: Any, **options: Any) -> None:
        on_signals(request_stop)
        try:
            Stack(options).run()
        except StopRequested:
            Console().say("up", "stopped")
        except EmbeddedError as error:
            raise CommandError(str(error)) from None


class Stack:
    """One run of `up`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.state = env.state_dir()
        self.console = Console()
        self.supervisor = Supervisor(self.console, changed=self.publish)
        self.url = ""
        self.ready = False
        self.services = Services(self.state, postgres=not env.text("DATABASE_URL"), valkey=not env.text("REDIS_URL"))

    def run(self) -> None:
        """Returns only by StopRequested or an error; either way everything that was started is gone."""
        # Before anything is started: a port that is taken is known at once.
        self.listener = listen(self.options["host"], self.options["port"])
        with self.listener, self.services:
            try:
                self.bring_up()
                while True:
                    self.supervisor.tend()
                    time.sleep(LOOK_EVERY)
            finally:
                self.end()  # programs before services: none of them sees its database go

    def bring_up(self) -> None:
        self.supervisor.services = list(self.services.running())
        self.console.say("up", f"state in {self.state}; {self.where()}")
        self.migrate()
        host, port = self.listener.getsockname()[:2]
        self.url = f"http://{'127.0.0.1' if host == '0.0.0.0' else f'[{host}]' if ':' in host else host}:{port}"
        self.begin()
        self.wait_ready()

    def where(self) -> str:
        names = [service.name for service in self.supervisor.services]
        return f"own {' and '.join(names)}" if names else "services of DATABASE_URL and REDIS_URL"

    def end(self) -> None:
        on_signals(lambda _number: os._exit(130))  # a second Ctrl-C: the kernel ends the children with us
        self.console.say("up", "stopping")
        runfile.remove(self.state)
        self.supervisor.stop()

    def environment(self, role: str) -> dict[str, str]:
        return {
            **os.environ,
            **self.services.addresses(),
            "MULTICA_ROLE": role,
            "MULTICA_STATE_DIR": str(self.state),
            "DJANGO_SETTINGS_MODULE": "multica.settings",
            "PYTHONUNBUFFERED": "1",
        }

    def migrate(self) -> None:
        """Own database: must work at once. The operator's may still be starting: asked for a minute."""
        end = time.monotonic() + (0 if self.services.postgres else 60)
        databases.point_at(self.services.addresses().get("DATABASE_URL") or env.text("DATABASE_URL"))
        while True:
            told = io.StringIO()
            try:
                call_command("migrate", interactive=False, no_color=True, stdout=told)
            except OperationalError as error:
                reason = str(error).strip().splitlines()[0]
                if time.monotonic() > end:
                    raise EmbeddedError(f"the database is not reachable: {reason}") from None
                self.console.say("up", f"the database is not reachable yet: {reason}")
                time.sleep(2)
                continue
            finally:
                connection.close()
            applied = sum(line.endswith("OK") for line in told.getvalue().splitlines())
            self.console.say("up", f"migrations: {applied} applied" if applied else "migrations: up to date")
            return

    def begin(self) -> None:
        # The socket stays open here: while the web process is being restarted, clients wait instead of being refused.
        descriptor = self.listener.fileno()
        self.add("web", [*django_argv(), "serve", "--fd", str(descriptor)], keep=(descriptor,))
        if "sweeper" not in self.options["without"]:
            self.add("sweeper", [*django_argv(), "runsweeper"])
        if "worker" not in self.options["without"]:
            # Threads, not forked processes: nothing can outlive the worker.
            celery = [sys.executable, "-m", "celery", "--quiet", "--app", "multica", "worker"]
            quiet = ["--without-gossip", "--without-mingle"]
            self.add("worker", [*celery, "--pool", "threads", "--concurrency", "4", *quiet])

    def add(self, name: str, argv: list[str], keep: tuple[int, ...] = ()) -> None:
        self.supervisor.start(Program(name, argv, self.environment(name), env.CHECKOUT, keep))

    def wait_ready(self) -> None:
        end = time.monotonic() + self.options["ready_timeout"]
        while (answer := ask(f"{self.url}/ready")) != "ready":
            if time.monotonic() > end:
                raise EmbeddedError(f"the web process did not become ready in time: {answer}")
            self.supervisor.tend()
            time.sleep(0.05)
        self.ready = True
        self.publish()
        self.console.say("up", f"ready: {self.url} (admin: {self.url}/admin/, stop: Ctrl-C)")

    def publish(self) -> None:
        """Keeps run.json true after every start."""
        addresses = self.services.addresses()
        things: list[Service | Program] = [*self.supervisor.services, *self.supervisor.programs]
        content = {
            "owner": "up",
            "ready": self.ready,
            "http_url": self.url or None,
            "database_url": addresses.get("DATABASE_URL"),
            "redis_url": addresses.get("REDIS_URL"),
            "pids": {thing.name: thing.child.pid for thing in things if thing.child is not None},
        }
        runfile.write(self.state, content)


def django_argv() -> list[str]:
    script = env.CHECKOUT / "manage.py"
    return [sys.executable, str(script)] if script.exists() else [sys.executable, "-m", "django"]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on `port`, or with 0 on the first free one from the default upwards; refuses in words."""
    tried = [port] if port else range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in tried:
        try:
            return socket.create_server((host, number), family=family, backlog=1024)
        except OSError as error:
            reason = error.strerror
    raise EmbeddedError(f"cannot listen on {host}:{tried[0]}: {reason}. Give another with --port or MULTICA_PORT.")


def ask(url: str) -> str:
    """`ready`, or what the web process says is missing."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(json.load(answer)["status"])
    except urllib.error.HTTPError as error:
        with error:
            return error.read(2000).decode(errors="replace")
    except OSError as error:
        return f"no answer ({error})"
