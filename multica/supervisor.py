"""Keeps the processes of one machine's stack alive and ends them together; used by `manage.py up`.

Own and not a tool from outside: when this process is killed with SIGKILL, the kernel ends every child with it, and a
child that dies comes back with growing pauses instead of taking the others down.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from multica.embedded import process

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
# A child that lived this long died of something new: its pauses start over.
SETTLED = 60.0
GRACE = 10.0
COLOURS = (36, 32, 33, 35, 34)


class StopRequested(BaseException):
    """Ctrl-C or SIGTERM. Not an Exception: no handler of errors on the way may swallow it."""


class Service(Protocol):
    """An embedded service: what the supervisor needs of it."""

    name: str
    child: process.Child | None

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def running(self) -> bool: ...


class Console:
    """One line at a time, each with the name of the process that wrote it."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stdout
        self.colour = self.stream.isatty() and not os.environ.get("NO_COLOR")
        self._lock = threading.Lock()
        self._names: list[str] = []

    def say(self, name: str, line: str) -> None:
        with self._lock:
            if name not in self._names:
                self._names.append(name)
            head = f"{name:<8} | "
            if self.colour:
                head = f"\x1b[{COLOURS[self._names.index(name) % len(COLOURS)]}m{head}\x1b[0m"
            try:
                self.stream.write(f"{head}{line.rstrip()}\n")
                self.stream.flush()
            except (OSError, ValueError):
                pass  # the terminal is gone; the stack goes on until it is told to stop

    def pump(self, name: str, stream: IO[bytes]) -> None:
        """Copies a child's output until it ends; in a thread, so a chatty child never blocks on a full pipe."""

        def copy() -> None:
            with stream:
                for line in stream:
                    self.say(name, line.decode(errors="replace"))

        threading.Thread(target=copy, name=f"log-{name}", daemon=True).start()


@dataclass
class Program:
    """One process of ours. `argv` and `env` are complete; `keep` are descriptors that it inherits."""

    name: str
    argv: list[str]
    env: dict[str, str]
    cwd: Path
    keep: tuple[int, ...] = ()
    child: process.Child | None = None
    pause: float = FIRST_PAUSE
    started: float = 0.0
    due: float = 0.0

    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None


@dataclass
class Supervisor:
    """`services` run already when it is made; programs are started by `start`. Main thread only."""

    console: Console
    services: list[Service] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    changed: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic

    def start(self, program: Program) -> None:
        if program not in self.programs:
            self.programs.append(program)
        # SIGKILL if this process dies: its database goes at the same moment, and every program may die at any instant.
        program.child = process.spawn(
            program.argv,
            output=process.PIPE,
            die_signal=signal.SIGKILL,
            env=program.env,
            cwd=program.cwd,
            keep=program.keep,
        )
        program.started = self.clock()
        assert program.child.stdout is not None
        self.console.pump(program.name, program.child.stdout)
        self.changed()

    def tend(self) -> None:
        """One look at everything: dead services first, since the programs need them."""
        for service in self.services:
            if not service.running():
                self._revive(service)
        for program in self.programs:
            if not program.running():
                self._restart(program)

    def _revive(self, service: Service) -> None:
        status = service.child.poll() if service.child is not None else None
        self.console.say("up", f"{service.name} ended ({exit_words(status)}); starting it again")
        service.start()
        self.console.say("up", f"{service.name} is back")
        self.changed()

    def _restart(self, program: Program) -> None:
        now = self.clock()
        if not program.due:
            assert program.child is not None
            if now - program.started > SETTLED:
                program.pause = FIRST_PAUSE
            program.due = now + program.pause
            words = exit_words(program.child.poll())
            self.console.say("up", f"{program.name} ended ({words}); starting it again in {program.pause:.1f} s")
            program.pause = min(program.pause * 2, LONGEST_PAUSE)
        elif now >= program.due:
            program.due = 0.0
            self.start(program)

    def stop(self) -> None:
        """Ends the programs together and returns when they are gone; whoever does not go in time is killed."""
        running = [program for program in self.programs if program.running()]
        for program in running:
            assert program.child is not None
            program.child.terminate()
        end = time.monotonic() + GRACE
        for program in running:
            assert program.child is not None
            process.wait_until(lambda child=program.child: child.poll() is not None, max(0.0, end - time.monotonic()))
            if program.running():
                self.console.say("up", f"{program.name} did not stop in {GRACE:.0f} s; killing it")
            process.stop(program.child, signal.SIGKILL, GRACE)


def exit_words(status: int | None) -> str:
    if status is None:
        return "never started"
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def on_signals(handler: Callable[[int], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # started with nohup: meant to outlive the terminal
        signal.signal(number, lambda received, _frame: handler(received))


def request_stop(_number: int) -> None:
    raise StopRequested
