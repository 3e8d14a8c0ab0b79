"""What every family needs to start a CLI: argument filtering, the run loop around a process, and its bounded end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum
from typing import Final

from daemon_client import protocol
from daemon_client.agents import base
from daemon_client.agents.classify import classify, classify_exit, describe_exit
from daemon_client.agents.redact import Redactor
from daemon_client.process import LineTooLong, ManagedProcess, spawn, terminate_tree

STDERR_SHOWN: Final = 2048
ERROR_SHOWN: Final = 16 * 1024
# After the last word of a run: how long its process may take to go, and then its pipes to close.
EXIT_PATIENCE: Final = 10.0
DRAIN_PATIENCE: Final = 5.0


class Arity(Enum):
    NONE = 0
    VALUE = 1


def filter_args(args: Iterable[str], owned: Mapping[str, Arity]) -> list[str]:
    """User arguments without those that the adapter sets itself, their values included; one level of quotes is undone.

    `--flag=value` counts as the flag. What belongs to no owned flag stays, in order.
    """
    kept: list[str] = []
    skip = False
    for argument in map(_unquote, args):
        if skip:
            skip = False
            continue
        flag, equals, _ = argument.partition("=")
        if flag in owned:
            skip = owned[flag] is Arity.VALUE and not equals
            continue
        kept.append(argument)
    return kept


def _unquote(argument: str) -> str:
    quoted = len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "'\""
    if not quoted:
        return argument
    with contextlib.suppress(ValueError):
        parts = shlex.split(argument)
        return parts[0] if len(parts) == 1 else argument
    return argument


def split_args(text: str) -> list[str]:
    """Arguments of a setting written like a shell would read them; text with broken quotes is cut at its spaces."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


Step = Callable[[ManagedProcess], Awaitable[object]]


class Run:
    """One process of one run, with the events it may emit already cleaned.

    `finished` is set by the reader when the agent has said its last word although its output is still open.
    """

    def __init__(self, spec: base.RunSpec, emit: base.Emit, redactor: Redactor) -> None:
        self.spec, self._emit, self.redactor = spec, emit, redactor
        self.finished = asyncio.Event()
        self.used_tool = False
        self.read_error = ""

    def emit(self, event: base.AgentEvent) -> None:
        self.used_tool = self.used_tool or isinstance(event, base.ToolUse)
        self._emit(self.redactor.event(event))

    async def drive(
        self,
        argv: list[str],
        stop: asyncio.Event,
        feed: Step,
        read: Step,
        env: Mapping[str, str] | None = None,
    ) -> Ended:
        """Start, feed stdin and read stdout at the same time, and see the tree to its end.

        After the last word (or end of output) the process has 10 s to go by itself. However this function is left, by
        cancellation too, nothing of the tree stays alive. Raises OSError when the program cannot be started.
        """
        process = await spawn(argv, cwd=self.spec.cwd, env=env or self.spec.env)
        steps = (
            feed(process),
            self._guarded(read(process)),
            stop.wait(),
            process.wait(),
            self.finished.wait(),
        )
        tasks: list[asyncio.Future[object]] = [asyncio.ensure_future(step) for step in steps]
        _, reader, stopper, ending, _ = tasks
        try:
            await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
            if not self.read_error:
                await asyncio.wait(
                    {ending, stopper},
                    timeout=EXIT_PATIENCE,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            if not ending.done():
                process.close_stdin()
                await terminate_tree(process, self.spec.stop_grace)
            await asyncio.wait({reader}, timeout=DRAIN_PATIENCE)
            if reader.done():
                reader.result()  # a mistake in the reader is ours and must not look like an agent's failure
            return Ended(process.returncode, await process.stderr_tail(), stopped=stop.is_set())
        finally:
            await _end(process, tasks)

    async def _guarded(self, reading: Awaitable[object]) -> None:
        try:
            await reading
        except (LineTooLong, OSError) as error:
            self.read_error = str(error)


class Ended:
    """What is left of a process: exit code (None: it would not die), end of stderr, whether it was stopped."""

    def __init__(self, code: int | None, stderr: str, *, stopped: bool) -> None:
        self.code, self.stderr, self.stopped = code, stderr, stopped

    @property
    def stderr_shown(self) -> str:
        return self.stderr[-STDERR_SHOWN:].strip()


async def _end(process: ManagedProcess, tasks: Iterable[asyncio.Future[object]]) -> None:
    """Clean up in a way that a second cancellation cannot interrupt half-way."""

    async def all_of_it() -> None:
        if process.returncode is None:
            await terminate_tree(process, 0.0)
        pending = list(tasks)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await process.release()

    await asyncio.shield(asyncio.ensure_future(all_of_it()))


def could_not_start(spec: base.RunSpec, error: OSError) -> base.RunResult:
    """The result of a run whose program could not be executed at all."""
    name = spec.executable[0] if spec.executable else spec.provider
    if isinstance(error, FileNotFoundError):
        text = f"the executable {name} was not found; install the agent or correct its path"
    else:
        text = f"{name} could not be started: {error.strerror or error}"
    return base.RunResult(base.FAILED, error=text, failure_reason=protocol.REASON_MISSING_EXECUTABLE)


def failure_text(main: str, ended: Ended, redactor: Redactor) -> tuple[str, str]:
    """(error, reason) of a failed run from its own words, its exit code and the end of its stderr; secrets removed."""
    code = ended.code or 0
    stderr = ended.stderr_shown
    said = main.strip()
    parts = [said or describe_exit(code)]
    if stderr and stderr not in said:
        parts.append(stderr)
    reason = classify(said) if said else protocol.REASON_UNKNOWN
    if reason == protocol.REASON_UNKNOWN:
        reason = classify_exit(code, stderr) if code else classify("\n".join(parts))
    return redactor.text("\n".join(parts))[:ERROR_SHOWN], reason


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0
