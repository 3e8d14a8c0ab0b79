"""Family `plain`: any command. The prompt goes in on stdin and as a file, what it prints is what it has to say."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Final

from daemon_client.agents import base
from daemon_client.agents.launch import Run, Step, could_not_start, failure_text
from daemon_client.agents.redact import Redactor
from daemon_client.process import ManagedProcess

PROMPT_VARIABLE: Final = "MULTICA_PROMPT_FILE"
MAX_OUTPUT: Final = 1024 * 1024


class PlainAdapter:
    """Exit code 0 is success and stdout the deliverable (its last MiB); anything else is a failure.

    The command gets the prompt on stdin, followed by end of file, and in the file that `MULTICA_PROMPT_FILE` names.
    Each line of stdout is one Text event as soon as it is printed. There are no sessions and no usage.
    """

    name = "plain"

    async def run(self, spec: base.RunSpec, emit: base.Emit, stop: asyncio.Event) -> base.RunResult:
        run = Run(spec, emit, Redactor.for_env(spec.env, spec.secrets))
        lines: list[str] = []
        prompt_file = _write_prompt(spec)
        try:
            env = {**spec.env, PROMPT_VARIABLE: str(prompt_file)}
            argv = [*spec.executable, *spec.custom_args]
            ended = await run.drive(
                argv,
                stop,
                _feed(spec.prompt),
                lambda process: _read(process, run, lines),
                env,
            )
        except OSError as error:
            return could_not_start(spec, error)
        finally:
            prompt_file.unlink(missing_ok=True)
        if ended.stopped:
            return base.RunResult(base.CANCELLED, error="the run was stopped", failure_reason="cancelled")
        if ended.code == 0 and not run.read_error:
            return base.RunResult(
                base.COMPLETED,
                output=run.redactor.text("\n".join(lines).strip()[-MAX_OUTPUT:]),
            )
        text, reason = failure_text(run.read_error, ended, run.redactor)
        return base.RunResult(base.FAILED, error=text, failure_reason=reason)


def _write_prompt(spec: base.RunSpec) -> Path:
    handle, name = tempfile.mkstemp(prefix="prompt-", suffix=".md", dir=spec.tmpdir)
    with open(handle, "w", encoding="utf-8", errors="replace") as file:
        file.write(spec.prompt)
    return Path(name)


def _feed(prompt: str) -> Step:
    async def feed(process: ManagedProcess) -> None:
        # A command that does not read its stdin is no failure: the prompt is in the file as well.
        with contextlib.suppress(OSError):
            await process.write(prompt.encode("utf-8", "replace"))
        process.close_stdin()

    return feed


async def _read(process: ManagedProcess, run: Run, lines: list[str]) -> None:
    size = 0
    async for raw in process.lines():
        line = raw.decode("utf-8", "replace")
        run.emit(base.Text(line + "\n"))
        lines.append(line)
        size += len(line) + 1
        while size > MAX_OUTPUT and len(lines) > 1:
            size -= len(lines.pop(0)) + 1
    # A command may close its output and go on working; only its end is the end.
    await process.wait()
