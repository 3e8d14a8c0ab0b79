"""The only retry policy of the daemon: which errors are worth another try, and how long to wait before it."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from daemon_client import protocol
from daemon_client.clock import Clock
from daemon_client.errors import is_transient

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """Waits before the second, third, ... attempt. The number of attempts is one more than their number."""

    delays: tuple[float, ...]


ONCE = Schedule(())
TERMINAL = Schedule(protocol.TERMINAL_RETRY_DELAYS)
# A start may be repeated only where the server can tell that it is the same delivery (it sent a claim token).
START = Schedule((1.0, 2.0, 4.0, 8.0))
REQUESTED_RESULT = Schedule((0.5, 2.0, 4.0))


async def attempt(call: Callable[[], Awaitable[T]], schedule: Schedule, clock: Clock) -> T:
    """Run `call` until it succeeds, fails for good, or the schedule is used up; then its last error is raised."""
    for delay in schedule.delays:
        try:
            return await call()
        except Exception as error:
            if not is_transient(error):
                raise
            log.debug("trying again in %.1f s: %s", delay, error)
        await clock.sleep(delay)
    return await call()


class Backoff:
    """Doubling waits between a floor and a ceiling, spread by a fifth either way so that a crowd does not stampede."""

    def __init__(self, floor: float, ceiling: float, *, jitter: float = 0.2) -> None:
        self._floor, self._ceiling, self._jitter = floor, ceiling, jitter
        self.failures = 0

    def reset(self) -> None:
        self.failures = 0

    def next(self) -> float:
        wait = min(self._floor * 2.0 ** min(self.failures, 30), self._ceiling)
        self.failures += 1
        return spread(wait, self._jitter)


def spread(seconds: float, jitter: float = 0.2) -> float:
    return seconds * random.uniform(1 - jitter, 1 + jitter)
