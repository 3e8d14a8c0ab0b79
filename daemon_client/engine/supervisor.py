"""One daemon: start order, the loops and their task group, graceful stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from daemon_client import protocol
from daemon_client.clock import Clock, SystemClock
from daemon_client.config import DaemonSettings
from daemon_client.engine.claimer import Claimer
from daemon_client.engine.context import Context
from daemon_client.engine.heartbeat import Heartbeats
from daemon_client.engine.listener import Listener
from daemon_client.engine.outbox import Outbox
from daemon_client.engine.poller import Poller
from daemon_client.engine.registration import Registrar
from daemon_client.engine.runner import TaskRunner
from daemon_client.engine.signals import ReconcileBroadcaster, Wake
from daemon_client.engine.singleton import Singleton
from daemon_client.engine.slots import SlotPool
from daemon_client.engine.workbench import Machine, WorkbenchFactory
from daemon_client.engine.workspaces import ProfileRefresh, RuntimeRecovery, WorkspaceSync
from daemon_client.errors import HttpError, NotAuthenticated, is_transient
from daemon_client.local_http import LocalServer
from daemon_client.transport.http import HttpClient, ServerApi
from daemon_client.transport.retry import Backoff
from daemon_client.transport.rpc import RpcClient

log = logging.getLogger(__name__)


@dataclass
class Loop:
    """A named loop: `run_once` does one round and says how long to wait; `wake` ends that wait early."""

    name: str
    run_once: Callable[[], Awaitable[float]]
    wake: Wake
    last_run: datetime | None = None


class Daemon:
    """Runs until it is told to stop. `clock` and `workbench` are injectable; everything else follows from settings."""

    def __init__(
        self, settings: DaemonSettings, *, clock: Clock | None = None, workbench: WorkbenchFactory | None = None
    ) -> None:
        self.settings = settings
        clock = clock or SystemClock(settings.time_scale)
        api = ServerApi(HttpClient(settings.server_url, settings.token, clock, version=settings.cli_version))
        outbox = Outbox(settings.state_dir / "outbox", api, clock, settings.server_url)
        self.ctx = Context(
            settings=settings,
            clock=clock,
            api=api,
            workbench=(workbench or Machine)(settings),
            outbox=outbox,
            reconcile=ReconcileBroadcaster(clock),
            slots=SlotPool(settings.max_concurrent_tasks),
        )
        self.ready = asyncio.Event()
        self.loops: dict[str, Loop] = {}
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drain = settings.drain_timeout
        self._jobs: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        self._beats: dict[str, asyncio.Task[None]] = {}
        self._build()

    def _build(self) -> None:
        ctx = self.ctx
        rpc = RpcClient(ctx.clock)
        self.registrar = Registrar(ctx)
        self.sync = WorkspaceSync(ctx, self.registrar, self.spawn)
        self.recovery = RuntimeRecovery(ctx, self.sync)
        self.profiles = ProfileRefresh(ctx, self.registrar)
        self.claimer = Claimer(ctx.settings.daemon_id, ctx.api, rpc, ctx.clock)
        self.heartbeats = Heartbeats(ctx, self.spawn, self.recovery.gone)
        self.listener = Listener(ctx, self.claimer, rpc, self.heartbeats, self.profiles.request)
        self.poller = Poller(ctx, self.claimer, TaskRunner(ctx).run, self.spawn)
        self.local = LocalServer(ctx, self)
        ctx.outbox.settled = self.sync.recover_wake.set
        ctx.index.on_change(self._follow_runtimes)

    def spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a job beside the loops; it is waited for at the stop."""
        assert self._group is not None
        task = self._group.create_task(_logged(job))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return task

    # -- life --

    async def run(self) -> None:
        """Run the daemon. Raises AlreadyRunning, NotAuthenticated, or what made the start impossible."""
        if not self.settings.token:
            raise NotAuthenticated("not logged in; run: multica login --token <personal access token>")
        with Singleton(self.settings) as singleton:
            self.ctx.port = await self.local.open()
            singleton.announce(self.ctx.port)
            try:
                async with asyncio.TaskGroup() as group:
                    self._group = group
                    problem = await self._live(group)
                    for task in (*self._jobs, *self._beats.values()):
                        task.cancel()
            finally:
                await self.ctx.api.http.close()
                await self.local.close()
        if problem:
            raise problem

    async def _live(self, group: asyncio.TaskGroup) -> Exception | None:
        """From the first contact to the last report; what made the start impossible, if anything did."""
        stopper = group.create_task(_until(self._stop))
        start = group.create_task(_contained(self._start()))
        await asyncio.wait({stopper, start}, return_when=asyncio.FIRST_COMPLETED)
        stopper.cancel()
        if not start.done():
            start.cancel()
            return None
        if problem := start.result():
            return problem
        loops = self._start_loops(group)
        self.ready.set()
        log.info("daemon %s is running on port %d", self.settings.daemon_id, self.ctx.port)
        await self._stop.wait()
        await self._wind_down(loops)
        return None

    async def _start(self) -> None:
        """Preflight. Survivors are killed before their endings are replayed, and those before orphans are recovered."""
        await self._renew_token()
        await self.ctx.workbench.kill_survivors(self.settings.workspaces_root)
        await self.ctx.outbox.load()
        backoff = Backoff(1.0, 30.0)
        while True:
            try:
                await self.ctx.outbox.replay()
                await self.sync.preflight()
                await self.sync.recover_once()
                return
            except HttpError as error:
                if error.status == 401:
                    raise NotAuthenticated(f"the server refuses the token: {error}; run: multica login") from error
                if not is_transient(error):
                    raise
                log.warning("the server is not ready: %s", error)
            except Exception as error:
                if not is_transient(error):
                    raise
                log.warning("the server cannot be reached yet: %s", error)
            self.ctx.outbox.retry_now()
            await self.ctx.clock.sleep(backoff.next())

    def _start_loops(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        ctx = self.ctx
        loops = [
            Loop("poller", self.poller.run_once, ctx.poll_wake),
            Loop("workspace-sync", self.sync.run_once, ctx.sync_wake),
            Loop("orphan-recovery", self.sync.recover_once, self.sync.recover_wake),
            Loop("runtime-recovery", self.recovery.run_once, self.recovery.wake),
            Loop("profile-refresh", self.profiles.run_once, self.profiles.wake),
            Loop("outbox", ctx.outbox.run_once, ctx.outbox.wake),
            Loop("reconcile", ctx.reconcile.run_once, Wake()),
            Loop("token-renewal", self._renewal_once, Wake()),
        ]
        if self.settings.websocket:
            loops.append(Loop("socket", self.listener.run_once, Wake()))
            loops.append(Loop("socket-heartbeat", self.listener.beat_once, self.listener.beat_wake))
        self.loops = {loop.name: loop for loop in loops}
        self._follow_runtimes()
        tasks = [group.create_task(self._forever(loop)) for loop in loops]
        return [*tasks, group.create_task(self._resync_on_connect())]

    async def _resync_on_connect(self) -> None:
        with self.ctx.reconcile.subscribe(self.ctx.sync_wake):
            await asyncio.Event().wait()

    async def _forever(self, loop: Loop) -> None:
        """Round after round. An error of one round is logged and waited out; it never ends the loop, or the daemon."""
        backoff = Backoff(1.0, 60.0)
        while True:
            try:
                wait = await loop.run_once()
                backoff.reset()
            except Exception as error:
                wait = backoff.next()
                if is_transient(error):
                    log.warning("%s: %s; again in %.0f s", loop.name, error, wait)
                else:
                    log.exception("%s failed; again in %.0f s", loop.name, wait)
            loop.last_run = self.ctx.clock.now()
            if wait > 0:
                await loop.wake.wait(wait, self.ctx.clock)
            else:
                await asyncio.sleep(0)

    # -- heartbeats, one job a runtime --

    def _follow_runtimes(self) -> None:
        if self._group is None or self._stop.is_set() or not self.loops:
            return
        wanted = set(self.ctx.index.runtime_ids())
        for gone in self._beats.keys() - wanted:
            self._beats.pop(gone).cancel()
        for runtime_id in wanted - self._beats.keys():
            self._beats[runtime_id] = self._group.create_task(self._beat_forever(runtime_id))

    async def _beat_forever(self, runtime_id: str) -> None:
        await self.ctx.clock.sleep(self.heartbeats.first_delay())
        while True:
            await self.ctx.clock.sleep(await self.heartbeats.run_once(runtime_id))

    # -- token --

    async def _renewal_once(self) -> float:
        await self.ctx.clock.sleep(protocol.TOKEN_RENEWAL_INTERVAL)
        await self._renew_token()
        return 0.0

    async def _renew_token(self) -> None:
        try:
            await self.ctx.api.renew_token()
        except HttpError as error:
            hint = "; log in again: multica login" if error.status == 401 else ""
            log.warning("the token was not renewed: %s%s", error, hint)
        except Exception as error:
            log.warning("the token was not renewed: %s", error)

    # -- stop --

    def request_stop(self, drain: float | None = None) -> None:
        """Stop claiming, give running tasks `drain` seconds to end by themselves, then stop them. A second request
        stops them at once."""
        if self._stop.is_set():
            self._hurry.set()
            return
        if drain is not None:
            self._drain = drain
        self._stop.set()

    async def _wind_down(self, loops: list[asyncio.Task[None]]) -> None:
        self.poller.stopped = True
        log.info("stopping; %d tasks in flight", len(self.ctx.active))
        await self._until_idle(self._drain, self._hurry)
        with contextlib.suppress(TimeoutError):
            # A claim under way may still bring tasks; those must be handed back, not left behind.
            async with self.ctx.clock.timeout(self.ctx.clock.io_seconds(protocol.UNCERTAIN_WINDOW + 1)):
                await self.ctx.barrier.idle.wait()
        for run in self.ctx.active:
            run.control.request("shutdown")
        await self._until_idle(self.ctx.clock.io_seconds(protocol.SHUTDOWN_DRAIN), asyncio.Event())
        if left := len(self.ctx.active):
            log.warning("%d tasks could not be ended in time; they are settled at the next start", left)
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await self._deregister()

    async def _until_idle(self, limit: float, hurry: asyncio.Event) -> None:
        """Wait until nothing is claimed or running, until the limit, or until told to hurry."""
        waits = {asyncio.create_task(self._idle()), asyncio.create_task(_until(hurry))}
        try:
            with contextlib.suppress(TimeoutError):
                async with self.ctx.clock.timeout(limit):
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _idle(self) -> None:
        while len(self.ctx.active) or not self.ctx.barrier.idle.is_set():
            await self.ctx.barrier.idle.wait()
            for run in self.ctx.active:
                await run.done.wait()

    async def _deregister(self) -> None:
        if not (ids := self.ctx.index.runtime_ids()):
            return
        try:
            await self.ctx.api.deregister(ids)
        except Exception as error:
            log.warning("the runtimes could not be signed off: %s", error)


async def _until(event: asyncio.Event) -> None:
    await event.wait()


async def _contained(job: Coroutine[Any, Any, None]) -> Exception | None:
    try:
        await job
    except Exception as error:
        return error
    return None


async def _logged(job: Coroutine[Any, Any, None]) -> None:
    try:
        await job
    except Exception:
        log.exception("a job failed")
