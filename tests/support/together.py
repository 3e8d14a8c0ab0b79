"""Calls that start at the same moment, each on a thread and a database connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from django.db import connection

T = TypeVar("T")


def together(*calls: Callable[[], T], seconds: float = 30.0) -> list[T | Exception]:
    """Run the calls behind a barrier; what each returned or raised, in their order."""
    barrier = threading.Barrier(len(calls))
    results: list[T | Exception] = [AssertionError("did not end")] * len(calls)

    def run(number: int, call: Callable[[], T]) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(seconds)
            results[number] = call()
        except Exception as error:
            results[number] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(number, call)) for number, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    return results
