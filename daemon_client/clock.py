"""Time for the daemon: product seconds, scaled in one place, and a clock that tests move by hand.

All code of the engine speaks product seconds ("15 s between heartbeats"). `MULTICA_TIME_SCALE` shrinks them to real
ones here and nowhere else, so an end-to-end run at a twentieth of the real windows needs no other change.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

# An I/O limit shrunk with the windows would fire on a busy machine for no fault of the peer.
MIN_IO_TIMEOUT = 1.0


class Clock(Protocol):
    """What the engine knows of time. Durations are product seconds."""

    def monotonic(self) -> float:
        """Product seconds since an arbitrary start; never goes back when the wall clock is stepped."""

    def now(self) -> datetime:
        """Wall clock, aware, UTC. For records only; no decision may depend on it."""

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        """`async with` limit for waiting; raises TimeoutError when it fires. None means no limit."""

    def io_seconds(self, seconds: float) -> float:
        """`seconds` for one network operation: longer where scaling would leave less than one real second."""

    def real_seconds(self, seconds: float) -> float:
        """The same span on the wall, for libraries and peers that know nothing of the scale."""


class SystemClock:
    """The real clock. `scale` 0.05 makes a product minute last three real seconds."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def monotonic(self) -> float:
        return time.monotonic() / self.scale

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.scale)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        return asyncio.timeout(None if seconds is None else seconds * self.scale)

    def io_seconds(self, seconds: float) -> float:
        return max(seconds, min(seconds, MIN_IO_TIMEOUT) / self.scale)

    def real_seconds(self, seconds: float) -> float:
        return seconds * self.scale


class ManualClock:
    """A clock that stands still until `advance` moves it; sleepers and timeouts fire in order of their due time."""

    def __init__(self, start: datetime | None = None) -> None:
        self._elapsed = 0.0
        self._start = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self._elapsed

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    @property
    def waiting(self) -> int:
        """How many sleepers and timeouts are armed (ended ones included until they come due)."""
        return len(self._due)

    def _at(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self._elapsed + seconds, next(self._order), call))

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        done = asyncio.get_running_loop().create_future()
        self._at(seconds, lambda: None if done.done() else done.set_result(None))
        await done

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        limit = asyncio.timeout(None)
        if seconds is not None:
            self._at(seconds, lambda: _fire(limit))
        return limit

    def io_seconds(self, seconds: float) -> float:
        return seconds

    def real_seconds(self, seconds: float) -> float:
        return seconds

    async def advance(self, seconds: float) -> None:
        """Move time forward, letting everything that comes due run at its own moment."""
        end = self._elapsed + seconds
        await _settle()
        while self._due and self._due[0][0] <= end:
            when, _, call = heapq.heappop(self._due)
            self._elapsed = max(self._elapsed, when)
            call()
            await _settle()
        self._elapsed = end
        await _settle()


def _fire(limit: asyncio.Timeout) -> None:
    try:
        limit.reschedule(asyncio.get_running_loop().time())
    except RuntimeError:  # never entered, or left already
        return


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
