"""Runs one delivery of one task: check, prepare under a lease, start, launch the agent, report how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from daemon_client import protocol
from daemon_client.agents.base import Adapter, AgentEvent, RunResult, RunSpec, SessionStarted
from daemon_client.config import RuntimeInfo
from daemon_client.engine import cancel_watch
from daemon_client.engine.active import ActiveRun, Stopped
from daemon_client.engine.context import Context
from daemon_client.engine.messages import MessageStream
from daemon_client.engine.reporter import Outcome, Reporter
from daemon_client.engine.watchdog import Watchdog
from daemon_client.errors import HttpError, is_transient
from daemon_client.protocol import ClaimedTask, Json
from daemon_client.transport.retry import ONCE, REQUESTED_RESULT, START, attempt

if TYPE_CHECKING:
    from daemon_client.workspace.exec_env import Prepared

log = logging.getLogger(__name__)
T = TypeVar("T")

# After `stop` an adapter has its own grace to end the process tree; one that does not come back is given up.
ADAPTER_LIMIT = 60.0


class RunFailed(Exception):
    """The run cannot go on. `reason` is a failure reason of the protocol, the text goes to the user."""

    def __init__(self, text: str, reason: str) -> None:
        self.reason = reason
        super().__init__(text)


def identity_problem(task: ClaimedTask) -> str:
    """Why an agent must not be launched for this claim at all; empty when it may."""
    if not task.id:
        return "the claimed task has no id"
    if not task.agent_id or not task.agent:
        return "the claimed task names no agent"
    if task.agent.get("id") != task.agent_id:
        return "the claimed task carries another agent than it names"
    if not task.workspace_id:
        return "the claimed task names no workspace; refusing to spawn an agent"
    if not task.auth_token.strip().startswith(protocol.PREFIX_TASK_TOKEN):
        # Anything else may be a person's token, and an agent would act with that person's rights.
        return "the claimed task carries no task token; refusing to spawn an agent"
    return ""


def _start_failed(error: Exception) -> RunFailed:
    # An outage at the start is no fault of the task: it gets the reason that the server retries.
    reason = protocol.REASON_PROVIDER_NETWORK if is_transient(error) else protocol.REASON_UNKNOWN
    return RunFailed(f"start task failed: {error}", reason)


@contextlib.asynccontextmanager
async def background(job: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run a job beside a block and end it with the block. An error of the job is logged, never raised."""
    task = asyncio.create_task(job)
    try:
        yield task
    finally:
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(result, Exception):
            log.error("a background job failed", exc_info=result)


class TaskRunner:
    """Turns a delivery into exactly one ending, or into silence when the delivery was superseded."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._reporter = Reporter(ctx)

    async def run(self, run: ActiveRun) -> None:
        """Handle a delivery that is already in the registry; takes it out when its ending is durable."""
        try:
            await self._handle(run)
        except Exception as error:
            log.exception("task %s", run.task.id)
            if run.control.reason != "superseded":
                await self._reporter.fail(run.task, f"the daemon failed: {error}", protocol.REASON_UNKNOWN)
        finally:
            self._ctx.active.remove(run)

    async def _handle(self, run: ActiveRun) -> None:
        await self._displace_older(run)
        runtime = run.runtime
        if runtime is None:
            text = "this daemon no longer has the runtime of the task"
            await self._reporter.fail(run.task, text, protocol.REASON_RUNTIME_OFFLINE)
        elif problem := identity_problem(run.task):
            await self._reporter.fail(run.task, problem, protocol.REASON_INVALID_IDENTITY)
        else:
            await self._work(run, runtime)

    async def _work(self, run: ActiveRun, runtime: RuntimeInfo) -> None:
        outcome = Outcome()
        async with background(cancel_watch.watch(self._ctx, run)):
            await self._execute(run, runtime, outcome)
            run.phase = "finishing"
            await self._last_look(run, outcome)
        await self._reporter.finish(run, outcome)

    async def _displace_older(self, run: ActiveRun) -> None:
        """The server delivered a task again that is still held here: the old run must be gone before the new one."""
        for older in self._ctx.active.older_deliveries(run):
            older.control.request("superseded", "delivered again")
            await older.done.wait()

    async def _last_look(self, run: ActiveRun, outcome: Outcome) -> None:
        """The result may have become pointless while the agent worked: ask once more before reporting it."""
        if run.control.stop.is_set() or not outcome.launched:
            return
        await self._quietly(self._ctx.api.progress(run.task, "Finishing task", 2, 2))
        await cancel_watch.look(self._ctx, run)

    async def _execute(self, run: ActiveRun, runtime: RuntimeInfo, outcome: Outcome) -> None:
        try:
            prepared = outcome.prepared = await self._prepare_and_start(run, runtime, outcome)
            await self._launch(run, runtime, prepared, outcome)
        except Stopped:
            log.info("task %s stops: %s %s", run.task.id, run.control.reason, run.control.detail)
        except RunFailed as failure:
            outcome.fail(str(failure), failure.reason)

    # -- preparation --

    async def _prepare_and_start(self, run: ActiveRun, runtime: RuntimeInfo, outcome: Outcome) -> Prepared:
        budget = self._ctx.settings.prepare_budget
        try:
            async with background(self._extend_lease(run)), self._ctx.clock.timeout(budget):
                prepared = outcome.prepared = await self._prepare(run, runtime)
                run.workdir = prepared.workdir
                await self._start(run, prepared)
                return prepared
        except TimeoutError:
            raise RunFailed(f"preparation took longer than {budget:g} s", protocol.REASON_TIMEOUT) from None

    async def _prepare(self, run: ActiveRun, runtime: RuntimeInfo) -> Prepared:
        settings = self._ctx.settings
        job = self._ctx.workbench.prepare(
            run.task,
            settings=settings,
            runtime=runtime,
            daemon_port=self._ctx.port,
            server_url=settings.server_url,
            slot=run.slot,
        )
        try:
            return await self._unless_stopped(run, job)
        except Stopped:
            raise
        except Exception as error:
            reason = getattr(error, "reason", None)
            text = str(error) if reason else f"the directory of the task cannot be prepared: {error}"
            raise RunFailed(text, reason if isinstance(reason, str) else protocol.REASON_UNKNOWN) from error

    async def _unless_stopped(self, run: ActiveRun, job: Coroutine[Any, Any, T]) -> T:
        """The job's result; when the run must stop first, the job is cancelled and Stopped raised."""
        task, stop = asyncio.create_task(job), asyncio.create_task(run.control.stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopped
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _extend_lease(self, run: ActiveRun) -> None:
        while True:
            await self._ctx.clock.sleep(protocol.PREPARE_LEASE_REFRESH)
            try:
                await self._ctx.api.prepare_lease(run.task)
            except HttpError as error:
                if error.claim_is_over:
                    run.control.request("superseded", str(error))
                    return
                log.warning("prepare lease of task %s: %s", run.task.id, error)
            except Exception as error:
                log.warning("prepare lease of task %s: %s", run.task.id, error)

    async def _start(self, run: ActiveRun, prepared: Prepared) -> None:
        """Tell the server that the task runs. Only now, because whoever reads `running` may open the directory."""
        if not await asyncio.to_thread(prepared.workdir.is_dir):
            raise RunFailed(f"the work directory {prepared.workdir} is missing", protocol.REASON_UNKNOWN)
        run.control.check()
        # Without a claim token the server cannot tell a repeated start from a second delivery's, so there is no repeat.
        schedule = START if run.task.claim_token else ONCE
        try:
            await attempt(lambda: self._ctx.api.start(run.task), schedule, self._ctx.clock)
        except Exception as error:
            if isinstance(error, HttpError) and error.claim_is_over:
                run.control.request("superseded", str(error))
                raise Stopped from error
            raise _start_failed(error) from error
        run.phase = "running"

    # -- the agent --

    async def _launch(self, run: ActiveRun, runtime: RuntimeInfo, prepared: Prepared, outcome: Outcome) -> None:
        await self._quietly(self._ctx.api.progress(run.task, f"Launching {runtime.provider}", 1, 2))
        run.control.check()
        try:
            adapter = self._ctx.workbench.adapter_for(runtime.provider)
        except LookupError as error:
            raise RunFailed(str(error), protocol.REASON_MISSING_EXECUTABLE) from error
        outcome.launched = True
        superseded = partial(run.control.request, "superseded")
        stream = MessageStream(run.task, self._ctx.api, self._ctx.clock, superseded)
        try:
            result = await self._drive(run, adapter, self._spec(run, runtime, prepared), stream)
        finally:
            await stream.flush()
            outcome.messages = stream.rest()
        outcome.take(result)
        if run.control.stop.is_set() and result.status != "completed":
            outcome.status = "stopped"

    async def _drive(self, run: ActiveRun, adapter: Adapter, spec: RunSpec, stream: MessageStream) -> RunResult:
        watchdog = Watchdog(self._ctx.settings, run.control, self._ctx.clock)
        pin = SessionPin(self._ctx, run, spec)

        def emit(event: AgentEvent) -> None:
            watchdog.saw(event)
            if isinstance(event, SessionStarted):
                pin.known(event.session_id)
            else:
                stream.add(event)

        async with background(watchdog.run()), background(stream.run()):
            try:
                return await self._bounded(run, adapter.run(spec, emit, run.control.stop))
            except Exception as error:
                log.exception("task %s: adapter %s", run.task.id, adapter.name)
                return RunResult("failed", error=f"the agent could not be driven: {error}")
            finally:
                await pin.settle()

    async def _bounded(self, run: ActiveRun, job: Coroutine[Any, Any, RunResult]) -> RunResult:
        """The adapter's result; when it ignores `stop` for too long it is cancelled and counts as failed."""
        task, stop = asyncio.create_task(job), asyncio.create_task(run.control.stop.wait())
        limit = self._ctx.settings.stop_grace + ADAPTER_LIMIT
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(TimeoutError):
                async with self._ctx.clock.timeout(self._ctx.clock.io_seconds(limit)):
                    await asyncio.wait({task})
            return task.result() if task.done() else RunResult("failed", error="the agent could not be stopped in time")
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    def _spec(self, run: ActiveRun, runtime: RuntimeInfo, prepared: Prepared) -> RunSpec:
        agent, clock, settings = run.task.agent, self._ctx.clock, self._ctx.settings
        arguments = agent.get("custom_args")
        config = agent.get("mcp_config")
        return RunSpec(
            provider=runtime.provider,
            executable=[*runtime.executable, *runtime.fixed_args],
            cwd=prepared.workdir,
            env=prepared.env,
            prompt=prepared.prompt,
            model=_text(agent, "model") or settings.agent_setting(runtime.provider, "MODEL"),
            custom_args=[each for each in arguments if isinstance(each, str)] if isinstance(arguments, list) else [],
            resume_session_id=prepared.resume_session_id,
            mcp_config=config if isinstance(config, dict) else None,
            tmpdir=prepared.tmpdir,
            thinking_level=_text(agent, "thinking_level"),
            stop_grace=clock.real_seconds(clock.io_seconds(settings.stop_grace)),
        )

    async def _quietly(self, call: Coroutine[Any, Any, None]) -> None:
        try:
            await call
        except Exception as error:
            log.debug("not reported: %s", error)


def _text(agent: Json, name: str) -> str:
    value = agent.get(name)
    return value if isinstance(value, str) else ""


class SessionPin:
    """Reports the agent's session and directory as soon as the session is known, so that a crash can be resumed."""

    def __init__(self, ctx: Context, run: ActiveRun, spec: RunSpec) -> None:
        self._ctx, self._run, self._spec = ctx, run, spec
        self._job: asyncio.Task[None] | None = None
        self._session = ""

    def known(self, session_id: str) -> None:
        if not session_id or session_id == self._session:
            return
        self._session = session_id
        if self._job is None or self._job.done():
            self._job = asyncio.create_task(self._send())

    async def _send(self) -> None:
        sent = ""
        while sent != self._session:
            sent = self._session
            body: Json = {"session_id": sent, "work_dir": str(self._spec.cwd)}
            try:
                await attempt(partial(self._ctx.api.session, self._run.task, body), REQUESTED_RESULT, self._ctx.clock)
            except HttpError as error:
                if error.claim_is_over:
                    self._run.control.request("superseded", str(error))
                log.warning("session of task %s is not pinned: %s", self._run.task.id, error)
            except Exception as error:
                log.warning("session of task %s is not pinned: %s", self._run.task.id, error)

    async def settle(self) -> None:
        """Let a report under way arrive before the terminal one; the ending carries the session in any case."""
        if self._job is None:
            return
        with contextlib.suppress(TimeoutError):
            async with self._ctx.clock.timeout(self._ctx.clock.io_seconds(protocol.SESSION_TIMEOUT)):
                await asyncio.shield(self._job)
        self._job.cancel()
        await asyncio.gather(self._job, return_exceptions=True)
