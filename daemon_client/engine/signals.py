"""Wake-ups between loops: a flag that collapses bursts, and the broadcast that follows a (re)connect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from daemon_client.clock import Clock

MIN_BROADCAST_INTERVAL = 1.0


class Wake:
    """A one-element flag. Any number of `set` calls before a wait end that wait once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds: float | None, clock: Clock) -> bool:
        """Wait until woken (True) or until the time is over (False); the flag is down afterwards."""
        try:
            async with clock.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        finally:
            self._event.clear()
        return True


class ReconcileBroadcaster:
    """Tells every coarse loop to look now instead of at its next tick.

    Edge-triggered. A broadcast that nobody listens to is kept and given to the next subscriber, once. Requests closer
    than a second apart are merged and delivered when the second is over, so a flapping socket causes no storm and its
    last change is still seen.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requested = Wake()
        self._subscribers: set[Wake] = set()
        self._replay = False

    def request(self) -> None:
        self._requested.set()

    async def run_once(self) -> float:
        await self._requested.wait(None, self._clock)
        self._replay = not self._subscribers
        for subscriber in self._subscribers:
            subscriber.set()
        await self._clock.sleep(MIN_BROADCAST_INTERVAL)
        return 0.0

    @contextlib.contextmanager
    def subscribe(self, wake: Wake | None = None) -> Iterator[Wake]:
        wake = wake or Wake()
        if self._replay:
            self._replay = False
            wake.set()
        self._subscribers.add(wake)
        try:
            yield wake
        finally:
            self._subscribers.discard(wake)
