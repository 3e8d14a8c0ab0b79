"""Family `claude`: Claude Code in print mode, one JSON object a line in both directions.

Success is a `result` event and nothing else: neither exit code 0 nor the end of the output. stdin stays open until the
result, because the CLI may ask for permissions on stdout and waits for the answers there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from daemon_client import protocol
from daemon_client.agents import base
from daemon_client.agents.classify import classify
from daemon_client.agents.launch import (
    Arity,
    Ended,
    Run,
    could_not_start,
    failure_text,
    filter_args,
    is_root,
    split_args,
)
from daemon_client.agents.redact import Redactor
from daemon_client.agents.stream_json_events import StreamState
from daemon_client.agents.stream_json_usage import Ledger, add
from daemon_client.process import ManagedProcess

FIXED_ARGS: Final = (
    "-p", "--output-format", "stream-json", "--input-format", "stream-json", "--verbose",
    "--permission-mode", "bypassPermissions", "--disallowedTools", "AskUserQuestion",
)  # fmt: skip
OWNED_ARGS: Final = {
    "-p": Arity.NONE,
    "--print": Arity.NONE,
    "--output-format": Arity.VALUE,
    "--input-format": Arity.VALUE,
    "--permission-mode": Arity.VALUE,
    "--mcp-config": Arity.VALUE,
    "--strict-mcp-config": Arity.NONE,
    "--effort": Arity.VALUE,
    "-r": Arity.VALUE,
    "--resume": Arity.VALUE,
    "-c": Arity.NONE,
    "--continue": Arity.NONE,
    "--dangerously-skip-permissions": Arity.NONE,
}
EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
EXTRA_ARGS_VARIABLE: Final = "MULTICA_CLAUDE_ARGS"

_ROOT_REFUSAL: Final = (
    "Claude Code refuses to work unattended as root. Run the daemon as an ordinary user, or, if this machine is a "
    "throw-away sandbox, set IS_SANDBOX=1 in the environment of the daemon or of the agent"
)
_FRESH_NOTICE: Final = (
    "Note: the earlier conversation of this work could not be restored, so you start without its memory. The files in "
    "your directory are as they were left; look at them, and at the issue and its comments, before you act.\n\n"
)
# What the CLI says when the conversation to resume is not there, or belongs to somebody else.
_REJECTED: Final = (
    "no conversation found",
    "no saved session found",
    "session not found",
    "different account",
    "another account",
)
# A stored history that the service will never accept again.
_UNREPLAYABLE: Final = (
    "must have non-empty content",
    "text content blocks must be non-empty",
    "could not resolve authentication method",
)


class StreamJsonAdapter:
    """Claude Code 2.0 or newer.

    A conversation that cannot be resumed is given up once, before any tool was used, and the run starts fresh: the
    result then names the lost one in `retired_session_id`, and usage is the sum of both tries.
    """

    name = "claude"

    async def run(self, spec: base.RunSpec, emit: base.Emit, stop: asyncio.Event) -> base.RunResult:
        if is_root() and spec.env.get("IS_SANDBOX", "").lower() not in (
            "1",
            "true",
            "yes",
            "on",
        ):
            return base.RunResult(
                base.FAILED,
                error=_ROOT_REFUSAL,
                failure_reason=protocol.REASON_MISSING_CONFIG,
            )
        try:
            first = await _Attempt(spec, emit).run(stop)
            if not first.resume_rejected or stop.is_set():
                return first.result
            emit(base.AgentError("the earlier conversation could not be restored; starting a fresh one"))
            fresh = replace(spec, resume_session_id=None, prompt=_FRESH_NOTICE + spec.prompt)
            second = await _Attempt(fresh, emit).run(stop)
        except OSError as error:
            return could_not_start(spec, error)
        usage = add(first.result.usage, second.result.usage)
        return replace(second.result, usage=usage, retired_session_id=spec.resume_session_id or "")


def build_argv(spec: base.RunSpec, mcp_file: Path | None) -> list[str]:
    """The whole command line: prefix, own arguments, options, then the user's arguments without those that we own."""
    argv = [*filter_prefix(spec.executable), *FIXED_ARGS]
    if spec.mcp_config is not None:
        argv.append("--strict-mcp-config")
    if spec.model:
        argv += ["--model", spec.model]
    if spec.thinking_level in EFFORTS:
        argv += ["--effort", spec.thinking_level]
    if spec.resume_session_id:
        argv += ["--resume", spec.resume_session_id]
    argv += filter_args(
        [*split_args(spec.env.get(EXTRA_ARGS_VARIABLE, "")), *spec.custom_args],
        OWNED_ARGS,
    )
    if mcp_file is not None:
        argv += ["--mcp-config", str(mcp_file)]
    return argv


def filter_prefix(executable: list[str]) -> list[str]:
    """The launch prefix of a profile without the flags that this family sets."""
    return [*executable[:1], *filter_args(executable[1:], OWNED_ARGS)]


class _Attempt:
    """One launch of the CLI: with the conversation to resume, or without one."""

    def __init__(self, spec: base.RunSpec, emit: base.Emit) -> None:
        self.spec = spec
        self.launch = Run(spec, emit, Redactor.for_env(spec.env, spec.secrets))
        self.state = StreamState(spec.provider)
        self._ledger = Ledger(spec.env.get("CLAUDE_CONFIG_DIR", ""))
        self._counted: base.Json | None = None
        self.input_error = ""
        self.resume_rejected = False
        self.result = base.RunResult(base.FAILED)

    async def run(self, stop: asyncio.Event) -> _Attempt:
        with _mcp_file(self.spec) as mcp_file:
            argv = build_argv(self.spec, mcp_file)
            env = {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1", **self.spec.env}
            if self.spec.resume_session_id:
                self._counted = self._ledger.take(self.spec.resume_session_id)
            ended = await self.launch.drive(argv, stop, self._feed, self._read, env)
        self.resume_rejected = not ended.stopped and self._was_rejected(ended)
        self.result = self._conclude(ended)
        self._ledger.keep(self.state.session_id, self.state.model_usage)
        return self

    async def _feed(self, process: ManagedProcess) -> None:
        content = [{"type": "text", "text": self.spec.prompt}]
        await self._send(process, {"type": "user", "message": {"role": "user", "content": content}})

    async def _send(self, process: ManagedProcess, message: Mapping[str, object]) -> None:
        try:
            await process.write(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self.input_error = f"the agent no longer reads its input: {error}"

    async def _read(self, process: ManagedProcess) -> None:
        async for line in process.lines():
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict):
                    await self._on_event(process, event)

    async def _on_event(self, process: ManagedProcess, event: base.Json) -> None:
        for message in self.state.accept(event):
            self.launch.emit(message)
        if event.get("type") == "control_request":
            await self._send(process, answer_control(event))
        if event.get("type") == "result":
            process.close_stdin()
            self.launch.finished.set()

    def _was_rejected(self, ended: Ended) -> bool:
        if not self.spec.resume_session_id or self.state.succeeded or self.launch.used_tool:
            return False
        said = f"{self.state.error_text}\n{ended.stderr}".lower()
        return bool(self.launch.read_error) or any(phrase in said for phrase in (*_REJECTED, *_UNREPLAYABLE))

    def _conclude(self, ended: Ended) -> base.RunResult:
        state, redactor = self.state, self.launch.redactor
        # A CLI that failed to resume still echoes the id it was asked for; that is no session.
        session = "" if self.resume_rejected else state.session_id
        common = base.RunResult(base.FAILED, session_id=session, usage=self._usage())
        if ended.stopped:
            return replace(
                common,
                status=base.CANCELLED,
                error="the run was stopped",
                failure_reason=protocol.REASON_CANCELLED,
            )
        if state.succeeded and not state.left_in_background:
            return replace(common, status=base.COMPLETED, output=redactor.text(state.output))
        error, reason = self._explain(ended)
        return replace(common, error=error, failure_reason=reason)

    def _usage(self) -> tuple[base.Usage, ...]:
        resumed = self.state.session_id == self.spec.resume_session_id
        return self.state.usage(resumed=resumed, before=self._counted)

    def _explain(self, ended: Ended) -> tuple[str, str]:
        state, redactor = self.state, self.launch.redactor
        if state.prompt_too_long:
            return redactor.text(state.error_text or "the prompt is too long"), protocol.REASON_CONTEXT_OVERFLOW
        if state.has_result and state.is_error:
            return failure_text(
                state.error_text or "the agent reported an error without a text",
                ended,
                redactor,
            )
        if state.left_in_background:
            return (
                "the agent left work running in the background, which ends with it",
                protocol.REASON_PROCESS_FAILURE,
            )
        if self.launch.read_error:
            return redactor.text(self.launch.read_error), classify(self.launch.read_error)
        if self.input_error and not state.session_id:
            return failure_text("" if ended.stderr_shown else self.input_error, ended, redactor)
        if ended.code:
            return failure_text("", ended, redactor)
        text = "the agent ended without a result"
        return redactor.text(f"{text}\n{ended.stderr_shown}".strip()), protocol.REASON_EMPTY_OUTPUT


def answer_control(event: base.Json) -> base.Json:
    """The answer to a control request: tools are allowed, in the foreground; other questions get an error.

    Never leaving one open matters more than the answer: the CLI waits for it without a limit.
    """
    request = event.get("request")
    request = request if isinstance(request, dict) else {}
    response: base.Json = {"request_id": event.get("request_id")}
    if request.get("subtype") in (None, "can_use_tool"):
        given = request.get("input")
        tool_input = dict(given) if isinstance(given, dict) else {}
        if tool_input.get("run_in_background"):
            tool_input["run_in_background"] = False
        response |= {
            "subtype": "success",
            "response": {"behavior": "allow", "updatedInput": tool_input},
        }
    else:
        response |= {
            "subtype": "error",
            "error": f"{request.get('subtype')} is not supported by this client",
        }
    return {"type": "control_response", "response": response}


@contextlib.contextmanager
def _mcp_file(spec: base.RunSpec):  # type: ignore[no-untyped-def]
    """A private file with the managed MCP servers for the time of the run; none when they are not managed."""
    if spec.mcp_config is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="multica-mcp-", dir=spec.tmpdir) as folder:
        path = Path(folder) / "mcp.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps({"mcpServers": {}} | spec.mcp_config), "utf-8")
        yield path
