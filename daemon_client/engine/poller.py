"""The only claimer of the machine: takes slots first, then claims for all runtimes in one call, then hands out work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from daemon_client import protocol
from daemon_client.engine.active import ActiveRun
from daemon_client.engine.claimer import Claimer
from daemon_client.engine.context import Context
from daemon_client.errors import DaemonError
from daemon_client.protocol import ClaimedTask

log = logging.getLogger(__name__)

NO_SLOT_WAIT = 5.0
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Poller:
    """Slot before claim, so that a dispatched task never waits for room on the machine that got it."""

    def __init__(
        self, ctx: Context, claimer: Claimer, handle: Callable[[ActiveRun], Coroutine[Any, Any, None]], spawn: Spawn
    ) -> None:
        self._ctx, self._claimer, self._handle, self._spawn = ctx, claimer, handle, spawn
        self.stopped = False

    async def run_once(self) -> float:
        """One round. Returns how long to sleep before the next one unless woken; 0 means go on at once."""
        ctx = self._ctx
        runtime_ids = ctx.index.claimable_ids()
        if self.stopped or not runtime_ids:
            return ctx.settings.poll_interval
        if wait := self._claimer.blocked_for:
            return wait
        slots = ctx.slots.take(protocol.CLAIM_BATCH_CAP)
        if not slots:
            return min(ctx.settings.poll_interval, NO_SLOT_WAIT)
        if not ctx.barrier.try_enter():
            self._release(slots)
            return ctx.settings.poll_interval
        try:
            # Tasks are counted before the barrier is left: otherwise an update could slip in between.
            filled = await self._round(runtime_ids, slots)
        finally:
            ctx.barrier.leave()
        if filled:
            return 0.0
        return self._claimer.blocked_for or ctx.settings.poll_interval

    async def _round(self, runtime_ids: list[str], slots: list[int]) -> bool:
        """True when every slot was filled, so there may be more."""
        most = len(slots)
        tasks: list[ClaimedTask] = []
        try:
            tasks = await self._claimer.claim(runtime_ids, most)
        except DaemonError as error:
            log.warning("claim: %s", error)
        if len(tasks) > most:
            log.warning("the server sent %d tasks for %d slots; the rest is left to redelivery", len(tasks), most)
        for task in tasks[:most]:
            self._begin(task, slots.pop(0))
        self._release(slots)
        return len(tasks) >= most

    def _begin(self, task: ClaimedTask, slot: int) -> None:
        run = ActiveRun(task, slot, self._ctx.index.runtime(task.runtime_id))
        if not self._ctx.active.add(run):
            log.warning("task %s was delivered twice under one token; the second copy is ignored", task.id)
            self._ctx.slots.give_back(slot)
            return
        log.info("task %s claimed in slot %d", task.id, slot)
        self._spawn(self._work(run))

    async def _work(self, run: ActiveRun) -> None:
        try:
            await self._handle(run)
        finally:
            self._ctx.slots.give_back(run.slot)
            self._ctx.poll_wake.set()

    def _release(self, slots: list[int]) -> None:
        while slots:
            self._ctx.slots.give_back(slots.pop())
