"""Family `codex_app_server`: the Codex CLI as a JSON-RPC server on its own pipes.

Success is a `turn/completed` with status `completed` for the turn that was started here, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from daemon_client import protocol
from daemon_client.agents import base
from daemon_client.agents.classify import classify
from daemon_client.agents.codex_events import COMPLETED, TurnState
from daemon_client.agents.json_rpc import METHOD_NOT_FOUND, Peer, PeerGone, RpcError
from daemon_client.agents.launch import Arity, Ended, Run, could_not_start, failure_text, filter_args, split_args
from daemon_client.agents.redact import Redactor
from daemon_client.process import ManagedProcess

FIXED_ARGS: Final = ("app-server", "--listen", "stdio://")
OWNED_ARGS: Final = {"--listen": Arity.VALUE}
EXTRA_ARGS_VARIABLE: Final = "MULTICA_CODEX_ARGS"
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

_OVERRIDES: Final = ("-c", "--config")
_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_APPROVALS: Final = (
    "item/commandExecution/requestApproval",
    "item/fileChange/requestApproval",
    "execCommandApproval",
    "applyPatchApproval",
)
_FRESH_NOTICE: Final = (
    "Note: the earlier conversation of this work could not be restored, so you start without its memory. The files in "
    "your directory are as they were left; look at them, and at the issue and its comments, before you act.\n\n"
)


@dataclass(frozen=True)
class Limits:
    """Real seconds: one step before the turn; silence at its begin; silence later; from idle to the word that it ended.

    The second and third end a run that neither works nor fails; the daemon's own watchdogs are far longer.
    """

    handshake: float = 30.0
    first_turn: float = 60.0
    inactivity: float = 600.0
    idle: float = 5.0


class CodexAdapter:
    """Codex 0.100 or newer.

    A thread that Codex refuses to resume, or that it hands back as a line beyond all limits, is replaced by a fresh one
    before anything was asked; the result then names the lost one. A broken pipe is a failure and never a second run.
    """

    name = "codex"

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()

    async def run(self, spec: base.RunSpec, emit: base.Emit, stop: asyncio.Event) -> base.RunResult:
        try:
            first = _Attempt(spec, emit, self._limits)
            result = await first.run(stop)
            if stop.is_set() or first.state.begun:
                return result
            if first.oversized:
                emit(
                    base.AgentError("the earlier conversation has grown too large to be restored; starting a fresh one")
                )
                fresh = replace(spec, resume_session_id=None, prompt=_FRESH_NOTICE + spec.prompt)
                result = await _Attempt(fresh, emit, self._limits).run(stop)
                return replace(result, retired_session_id=spec.resume_session_id or "")
            if first.mute:
                result = await _Attempt(spec, emit, self._limits).run(stop)
            return result
        except OSError as error:
            return could_not_start(spec, error)


def build_argv(spec: base.RunSpec) -> list[str]:
    """The whole command line: prefix, own arguments, then the user's without those that we own."""
    given = [*split_args(spec.env.get(EXTRA_ARGS_VARIABLE, "")), *spec.custom_args]
    kept = filter_args(given, OWNED_ARGS)
    if spec.mcp_config is not None:
        kept = list(_without_servers(kept))
    return [*spec.executable[:1], *filter_args(spec.executable[1:], OWNED_ARGS), *FIXED_ARGS, *kept]


def _without_servers(args: list[str]) -> Iterator[str]:
    """Arguments without overrides of the MCP servers, which the server manages for this run."""
    pending = iter(args)
    for argument in pending:
        flag, equals, value = argument.partition("=")
        if flag not in _OVERRIDES:
            yield argument
            continue
        value = value if equals else next(pending, "")
        if not value.strip().startswith("mcp_servers"):
            yield from (flag, value)


def managed_servers(spec: base.RunSpec) -> base.Json:
    """Configuration overrides that give the run exactly the managed MCP servers; empty when they are not managed."""
    if spec.mcp_config is None:
        return {}
    given = spec.mcp_config.get("mcpServers")
    wanted = (
        {name: entry for name, entry in given.items() if isinstance(entry, dict)} if isinstance(given, dict) else {}
    )
    overrides: base.Json = {f"mcp_servers.{name}.enabled": False for name in _configured(spec) if name not in wanted}
    for name, entry in sorted(wanted.items()):
        if _SERVER_NAME.fullmatch(name):
            overrides[f"mcp_servers.{name}"] = _as_codex_server(entry)
    return overrides


def _as_codex_server(entry: base.Json) -> base.Json:
    dropped = ("type", "headers", "tools", "prompts", "resources")
    server = {key: value for key, value in entry.items() if key not in dropped}
    if entry.get("headers"):
        server["http_headers"] = entry["headers"]
    return server


def _configured(spec: base.RunSpec) -> list[str]:
    """Names of the MCP servers in the configuration of this run's home."""
    try:
        text = (Path(spec.env.get("CODEX_HOME") or "/nonexistent") / "config.toml").read_text("utf-8")
        servers = tomllib.loads(text).get("mcp_servers")
    except (OSError, ValueError):
        return []
    return [name for name in servers if _SERVER_NAME.fullmatch(name)] if isinstance(servers, dict) else []


class _Attempt:
    """One launch of the app-server with one turn."""

    def __init__(self, spec: base.RunSpec, emit: base.Emit, limits: Limits) -> None:
        self.spec, self._limits = spec, limits
        self.launch = Run(spec, emit, Redactor.for_env(spec.env, spec.secrets))
        self.state = TurnState(spec.provider)
        self._changed = asyncio.Event()
        self._heard = 0.0
        self.error = self.reason = self.retired = ""
        self.mute = False
        self._peer: Peer | None = None

    @property
    def oversized(self) -> bool:
        return bool(self.launch.read_error and self.spec.resume_session_id)

    async def run(self, stop: asyncio.Event) -> base.RunResult:
        ended = await self.launch.drive(build_argv(self.spec), stop, self._converse, self._read)
        return self._conclude(ended)

    def _peer_of(self, process: ManagedProcess) -> Peer:
        if self._peer is None:
            self._peer = Peer(process, self._notified, self._answer)
        return self._peer

    async def _read(self, process: ManagedProcess) -> None:
        await self._peer_of(process).read()

    async def _converse(self, process: ManagedProcess) -> None:
        peer = self._peer_of(process)
        try:
            await self._introduce(peer)
            prompt = self.spec.prompt if await self._open_thread(peer) else _FRESH_NOTICE + self.spec.prompt
            await self._start_turn(peer, prompt)
            await self._await_end()
        except TimeoutError:
            self.error = self.error or f"codex did not answer within {self._limits.handshake:g} s"
            self.reason = protocol.REASON_AGENT_TIMEOUT
        except (RpcError, PeerGone) as error:
            self.error = self.error or str(error)
        finally:
            process.close_stdin()
            self.launch.finished.set()

    async def _introduce(self, peer: Peer) -> None:
        client = {"name": "multica", "title": "Multica", "version": "1"}
        params = {"clientInfo": client, "capabilities": {"experimentalApi": True}}
        self.mute = True
        await peer.call("initialize", params, self._limits.handshake)
        self.mute = False
        await peer.notify("initialized", {})

    async def _open_thread(self, peer: Peer) -> bool:
        """Resume or start the thread; False when one was to be resumed and a fresh one had to be started."""
        common = self._thread_options()
        if wanted := self.spec.resume_session_id:
            # Only a refusal leads to a fresh thread. After a broken pipe nobody knows what codex has done.
            with contextlib.suppress(RpcError):
                answer = await peer.call("thread/resume", {"threadId": wanted, **common}, self._limits.handshake)
                self._take_thread(answer)
                return True
            self.retired = wanted
            self.launch.emit(base.AgentError("the earlier conversation could not be restored; starting a fresh one"))
        answer = await peer.call("thread/start", common, self._limits.handshake)
        self._take_thread(answer)
        return not wanted

    def _thread_options(self) -> base.Json:
        config = managed_servers(self.spec)
        if self.spec.thinking_level in EFFORTS:
            config["model_reasoning_effort"] = self.spec.thinking_level
        # The directory and the process tree are the daemon's; nobody is there to be asked.
        options: dict[str, Any] = {"approvalPolicy": "never", "sandbox": "danger-full-access"}
        return options | {"cwd": str(self.spec.cwd), "model": self.spec.model or None, "config": config or None}

    def _take_thread(self, answer: base.Json) -> None:
        thread = answer.get("thread")
        session = thread.get("id") if isinstance(thread, dict) else None
        if not isinstance(session, str) or not session:
            raise RpcError(0, "codex opened a thread without an id")
        self.state.thread_id = session
        self.state.model = str(answer.get("model") or self.spec.model)
        self.launch.emit(base.SessionStarted(session))

    async def _start_turn(self, peer: Peer, prompt: str) -> None:
        params: base.Json = {"threadId": self.state.thread_id, "input": [{"type": "text", "text": prompt}]}
        if self.spec.thinking_level in EFFORTS:
            params["effort"] = self.spec.thinking_level
        self.state.begin()
        self._heard = asyncio.get_running_loop().time()
        answer = await peer.call("turn/start", params, self._limits.handshake)
        turn = answer.get("turn")
        if isinstance(turn, dict) and turn.get("id"):
            self.state.turn_id = str(turn["id"])

    async def _await_end(self) -> None:
        clock = asyncio.get_running_loop().time
        while not self.state.ended_as:
            self._changed.clear()
            left = self._heard + self._silence_limit() - clock()
            if left <= 0:
                self._give_up()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    def _silence_limit(self) -> float:
        if self.state.idle:
            return self._limits.idle
        return self._limits.inactivity if self.state.progressed else self._limits.first_turn

    def _give_up(self) -> None:
        """Silence: a thread at rest after its final answer has finished; anything else hangs."""
        if self.state.idle and self.state.has_final_answer:
            self.state.ended_as = COMPLETED
        elif self.state.idle:
            self.error = self.state.error or "codex came to rest without ending its turn"
        elif self.state.progressed:
            self.error = f"codex semantic inactivity timeout: nothing for {self._limits.inactivity:g} s"
            self.reason = protocol.REASON_CODEX_INACTIVITY
        else:
            self.error = f"codex app-server no progress timeout: nothing for {self._limits.first_turn:g} s"
            self.reason = protocol.REASON_AGENT_TIMEOUT

    # --- what codex says -----------------------------------------------------------------------------------------

    def _notified(self, method: str, params: base.Json) -> None:
        for event in self.state.accept(method, params):
            self.launch.emit(event)
        if self.state.concerns(params) and method.startswith(("item/", "turn/", "thread/", "error")):
            self._heard = asyncio.get_running_loop().time()
        self._changed.set()

    async def _answer(self, method: str, params: base.Json) -> base.Json:
        self._heard = asyncio.get_running_loop().time()
        if method in _APPROVALS:
            return {"decision": "accept" if method.startswith("item/") else "approved"}
        if method == "item/permissions/requestApproval":
            asked = params.get("permissions")
            asked = asked if isinstance(asked, dict) else {}
            granted = {key: asked[key] for key in ("network", "fileSystem") if asked.get(key) is not None}
            return {"permissions": granted, "scope": "turn"}
        if method == "mcpServer/elicitation/request":
            return {"action": "accept", "content": None, "_meta": None}
        self.error = f"codex asked for {method}, which nobody can answer in an unattended run"
        raise RpcError(METHOD_NOT_FOUND, self.error)

    # --- the end -------------------------------------------------------------------------------------------------

    def _conclude(self, ended: Ended) -> base.RunResult:
        state, redactor = self.state, self.launch.redactor
        common = base.RunResult(
            base.FAILED, session_id=state.thread_id, retired_session_id=self.retired, usage=state.usage()
        )
        if ended.stopped:
            text = "the run was stopped"
            return replace(common, status=base.CANCELLED, error=text, failure_reason=protocol.REASON_CANCELLED)
        if state.ended_as == COMPLETED and not self.error:
            return replace(common, status=base.COMPLETED, output=redactor.text(state.output))
        error, reason = self._explain(ended)
        return replace(common, error=error, failure_reason=self.reason or reason)

    def _explain(self, ended: Ended) -> tuple[str, str]:
        said = self.launch.read_error or self.error or self.state.error
        if self.launch.read_error:
            return self.launch.redactor.text(said), classify(said)
        if said or ended.code:
            return failure_text(said, ended, self.launch.redactor)
        how = f"as {self.state.ended_as}" if self.state.ended_as else "before its turn was over"
        text = f"codex ended {how}\n{ended.stderr_shown}".strip()
        return self.launch.redactor.text(text), protocol.REASON_PROCESS_FAILURE
