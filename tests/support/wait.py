"""Bounded waits on a condition; the only way in which a test lets time pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = 10.0, what: str = "") -> T:
    """The first true value of `condition()`; AssertionError, naming `what` and the last value, when time is up."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what or condition} (last: {value!r})")
        time.sleep(0.01)
    return value


async def until_async(condition: Callable[[], T | Awaitable[T]], seconds: float = 10.0, what: str = "") -> T:
    """The same on the event loop; `condition` may be a coroutine function."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if isawaitable(value):
            value = await value
        if value:
            return value  # type: ignore[return-value]
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what or condition} (last: {value!r})")
        await asyncio.sleep(0.01)
