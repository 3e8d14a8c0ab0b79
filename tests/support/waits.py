"""Bounded waiting on a condition: the only way that a test lets time pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

STEP = 0.02
T = TypeVar("T")


def until(look: Callable[[], T], seconds: float = 10.0, what: str = "", step: float = STEP) -> T:
    """The first true value of `look()`; AssertionError with the last value when `seconds` pass without one.

    An AssertionError or OSError of `look` counts as "not yet" and is the cause that is shown in the end.
    """
    end = time.monotonic() + seconds
    cause: Exception | None = None
    while True:
        value = None
        try:
            value = look()
            cause = None
            if value:
                return value
        except (AssertionError, OSError) as error:
            cause = error
        if time.monotonic() > end:
            words = what or getattr(look, "__name__", "the condition")
            raise AssertionError(f"not within {seconds:g} s: {words}; last seen: {value!r}") from cause
        time.sleep(step)


def always(look: Callable[[], object], seconds: float, what: str = "", step: float = STEP) -> None:
    """`look()` stays true for `seconds`; AssertionError at the first moment it is not.

    For what must *not* happen within a window of the product: the window is the condition, so it has to pass.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert look(), f"stopped to hold: {what or getattr(look, '__name__', 'the condition')}"
        time.sleep(step)


class Stopwatch:
    """Seconds since it was made; to assert how long something took."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun
