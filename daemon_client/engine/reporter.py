"""Turns what became of a run into the ending that the server is told. Only an explicit success is ever a success."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from daemon_client import protocol
from daemon_client.agents.base import RunResult, Usage
from daemon_client.agents.redact import Redactor
from daemon_client.engine.active import ActiveRun
from daemon_client.engine.context import Context
from daemon_client.engine.outbox import Ending, Kind
from daemon_client.protocol import ClaimedTask, Json

if TYPE_CHECKING:
    from daemon_client.workspace.exec_env import Finished, Prepared

log = logging.getLogger(__name__)

FINISH_LIMIT = 120.0


@dataclass
class Outcome:
    """What is known when a run is over, before anybody is told. `status` says what the run itself came to."""

    status: Literal["completed", "failed", "stopped"] = "stopped"
    output: str = ""
    error: str = ""
    reason: str = ""
    session_id: str = ""
    retired_session_id: str = ""
    usage: list[Json] = field(default_factory=list)
    messages: list[Json] = field(default_factory=list)
    prepared: Prepared | None = None
    launched: bool = False

    def fail(self, error: str, reason: str) -> None:
        self.status, self.error, self.reason = "failed", error, reason

    def take(self, result: RunResult) -> None:
        """Fail closed: any status but `completed`, also one that is not known yet, is a failure."""
        self.session_id, self.retired_session_id = result.session_id, result.retired_session_id
        self.usage = [usage_json(usage) for usage in result.usage if not usage.is_empty]
        if result.status == "completed":
            self.status, self.output = "completed", result.output
            return
        reason = result.failure_reason or (
            protocol.REASON_CANCELLED if result.status == "cancelled" else protocol.REASON_UNKNOWN
        )
        self.fail(result.error or f"the agent ended with status {result.status}", reason)


def usage_json(usage: Usage) -> Json:
    entry: Json = {
        "provider": usage.provider,
        "model": usage.model,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
    }
    return entry if usage.cost_usd_ticks is None else entry | {"cost_usd_ticks": usage.cost_usd_ticks}


def _filled(**fields: str) -> Json:
    return {name: value for name, value in fields.items() if value}


class Reporter:
    """Writes endings to the outbox and makes the first attempt to send them."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def fail(self, task: ClaimedTask, error: str, reason: str) -> None:
        """End a delivery for which nothing was prepared or started."""
        await self._send(task, "fail", {"error": error, "failure_reason": reason}, Outcome())

    async def finish(self, run: ActiveRun, outcome: Outcome) -> None:
        """End a run: clean up its directory, then tell the server what became of it, durably."""
        kind, body = self._verdict(run, outcome)
        finished = await self._clean_up(run, outcome, kind)
        if kind is None:
            log.info("task %s: delivery superseded, nothing is reported", run.task.id)
            return
        branch = finished.branch_name if finished else ""
        durable = finished.durable_work_dir if finished else ""
        body |= _filled(branch_name=str(branch or ""), durable_work_dir=str(durable or ""))
        await self._send(run.task, kind, body, outcome)

    def _verdict(self, run: ActiveRun, outcome: Outcome) -> tuple[Kind | None, Json]:
        """The report that is due, or None when this delivery has no say any more."""
        reason = run.control.reason
        if reason == "superseded":
            return None, {}
        if reason == "cancelled":
            return "cancel_ack", {}
        where = _filled(
            session_id=outcome.session_id,
            retired_session_id=outcome.retired_session_id,
            work_dir=str(outcome.prepared.workdir) if outcome.prepared else "",
        )
        if outcome.status == "completed":
            return "complete", {"output": outcome.output} | where
        error, code = self._failure(run, outcome)
        return "fail", {"error": Redactor().text(error), "failure_reason": code} | where

    def _failure(self, run: ActiveRun, outcome: Outcome) -> tuple[str, str]:
        match run.control.reason:
            case "shutdown":
                # The code that the server retries: stopping a daemon must not cost anybody a task.
                return "the daemon was stopped while the task was in flight", protocol.REASON_RUNTIME_RECOVERY
            case "idle_watchdog":
                return run.control.detail, protocol.REASON_IDLE_WATCHDOG
            case "timeout":
                return run.control.detail, protocol.REASON_TIMEOUT
            case _:
                return outcome.error or "the run ended without a result", outcome.reason or protocol.REASON_UNKNOWN

    async def _clean_up(self, run: ActiveRun, outcome: Outcome, kind: Kind | None) -> Finished | None:
        if outcome.prepared is None:
            return None
        ending = {"complete": "completed", "fail": "failed", "cancel_ack": "cancelled", None: "superseded"}[kind]
        try:
            async with self._ctx.clock.timeout(self._ctx.clock.io_seconds(FINISH_LIMIT)):
                return await self._ctx.workbench.finish(outcome.prepared, run.task, outcome=ending)
        except Exception:
            log.exception("task %s: its directory could not be tidied up", run.task.id)
            return None

    async def _send(self, task: ClaimedTask, kind: Kind, body: Json, outcome: Outcome) -> None:
        session = _filled(
            session_id=outcome.session_id, work_dir=str(outcome.prepared.workdir) if outcome.prepared else ""
        )
        ending = Ending(
            task_id=task.id,
            runtime_id=task.runtime_id,
            claim_token=task.claim_token,
            kind=kind,
            body=body,
            usage=outcome.usage,
            messages=outcome.messages,
            session=session if outcome.session_id else {},
        )
        outbox = self._ctx.outbox
        await outbox.put(ending)
        if not await outbox.deliver(ending):
            outbox.wake.set()
