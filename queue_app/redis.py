"""The one Redis client of the queue's accelerators, with bounded calls and a breaker.

Redis is never the truth here: whoever calls must do the right thing, only slower, when there is no answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from queue_app.conf import conf

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_REST: Final = 0.5
LONGEST_REST: Final = 5.0
"""Seconds that calls are left out after a failure; each further failure doubles it."""


class Breaker:
    """After a failure nobody asks for a while; then one call tries, and the others go on without."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rest = 0.0
        self._until = 0.0

    def admits(self) -> bool:
        """Whether this call may be made; a True while broken makes the caller the one that tries."""
        with self._lock:
            if not self._rest:
                return True
            if self._clock() < self._until:
                return False
            self._until = self._clock() + self._rest
            return True

    def succeeded(self) -> None:
        with self._lock:
            self._rest = 0.0

    def failed(self) -> None:
        with self._lock:
            self._rest = min(LONGEST_REST, self._rest * 2 or FIRST_REST)
            self._until = self._clock() + self._rest


class _Door:
    """The client of an address; another address (tests, a reload) gets a new client and a closed breaker."""

    def __init__(self, address: str, timeout: float) -> None:
        self.address = address
        self.timeout = timeout
        self.breaker = Breaker()
        # No retry and no greeting beyond what the address needs: each would be paid again in full by a slow server.
        self.client = redis.Redis.from_url(
            address,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            driver_info=None,
            decode_responses=True,
            max_connections=256,
        )


_lock = threading.Lock()
_door: _Door | None = None


def _current() -> _Door | None:
    global _door
    address, timeout = settings.REDIS_URL, conf.REDIS_TIMEOUT
    door = _door
    if door is not None and (door.address, door.timeout) == (address, timeout):
        return door
    if not address:
        return None
    with _lock:
        if _door is None or (_door.address, _door.timeout) != (address, timeout):
            _door = _Door(address, timeout)
        return _door


def call(action: Callable[[redis.Redis], T]) -> T | None:
    """Run `action(client)`; None when there is no Redis, when it is resting after a failure, or when this call failed.

    Takes at most `REDIS_TIMEOUT` seconds for each round trip that `action` makes, so make one.
    """
    door = _current()
    if door is None or not door.breaker.admits():
        return None
    try:
        answer = action(door.client)
    except (redis.RedisError, OSError) as error:
        door.breaker.failed()
        log.warning("redis call failed, going on without: %s", type(error).__name__)
        return None
    door.breaker.succeeded()
    return answer


def configured() -> bool:
    """Whether there is a Redis at all."""
    return bool(settings.REDIS_URL)


def pipeline(commands: Callable[[Any], None]) -> list[Any] | None:
    """Send several commands as one round trip; their answers, or None as for `call`."""

    def run(client: redis.Redis) -> list[Any]:
        pipe = client.pipeline(transaction=False)
        commands(pipe)
        answers: list[Any] = pipe.execute()
        return answers

    return call(run)
