"""Real connections that meet: a connection for each claimer, a barrier, functions without a guard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Self, TypeVar
from uuid import UUID, uuid4

import psycopg
from django.db import connection, connections

from queue_app.models import AgentRuntime
from queue_app.sql import door
from queue_app.sql.claim import CALL, install

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds after which a wait on a condition is a failure."""


class Claimer:
    """One connection that claims. `function` names another claim function, for proofs that a guard is needed."""

    def __init__(self, *, autocommit: bool = True, function: str = "claim_tasks") -> None:
        self.connection = psycopg.connect(**door.parameters("race"), autocommit=True)
        # Crowds here are larger than any pool: what is asked is what they take, not how long they wait.
        self.connection.execute(
            "SET lock_timeout = '25s'; SET statement_timeout = '25s'; SET idle_in_transaction_session_timeout = 0"
        )
        self.connection.autocommit = autocommit
        self._call = CALL.replace("claim_tasks", function)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exit: object) -> None:
        self.connection.close()

    @property
    def pid(self) -> int:
        return self.connection.info.backend_pid

    def answer(
        self,
        *runtimes: AgentRuntime,
        most: int = 1,
        now: datetime | None = None,
        one_by_one: bool = False,
        **windows: Any,
    ) -> dict[str, Any]:
        """Everything that one call says."""
        values = {
            "runtimes": [runtime.id for runtime in runtimes],
            "daemon": None,
            "workspaces": list({runtime.workspace_id for runtime in runtimes}),
            "max": most,
            "hashes": [uuid4().hex for _ in range(most)],
            "freshness": 150,
            "recovery": 90,
            "lease": 45,
            "token_ttl": 86400,
            "max_deliveries": 5,
            "one_by_one": one_by_one,
            "now": now,
        }
        row = self.connection.execute(self._call, {**values, **windows}).fetchone()
        assert row is not None
        found: dict[str, Any] = row[0]
        return found

    def claim(self, *runtimes: AgentRuntime, most: int = 1, **options: Any) -> list[UUID]:
        """The ids that one call delivered, in the order of the answer."""
        return [UUID(task["id"]) for task in self.answer(*runtimes, most=most, **options)["tasks"]]


def together(count: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` to `work(count - 1)` in threads that start at one moment; their results in that order."""
    barrier = threading.Barrier(count)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait(PATIENCE)
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)
            barrier.abort()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE * 2)
    if errors:
        raise errors[0]
    assert len(results) == count, "a thread did not end"
    return [results[number] for number in range(count)]


def started(work: Callable[[], T]) -> Callable[[], T]:
    """Run `work` in a thread; calling the result waits for it and gives what it returned."""
    done: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> T:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the thread did not end"
        if errors:
            raise errors[0]
        return done[0]

    return result


def waits_for_a_lock(pid: int) -> bool:
    """Whether a backend waits for a heavyweight lock, as the server itself says."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", [pid])
        row = cursor.fetchone()
    return bool(row and row[0])


@contextmanager
def without(*guards: tuple[str, str], function: str = "claim_without_guard") -> Iterator[str]:
    """A copy of the claim in which pieces of its text, the guards, are replaced. Gives the copy's name."""
    text = install()
    for guard, instead in guards:
        assert text.count(guard) == 1, f"not where the proof expects it: {guard}"
        text = text.replace(guard, instead)
    text = text.replace("claim_tasks", function).replace("claim_deliver", f"{function}_deliver")
    with connection.cursor() as cursor:
        cursor.execute(text)
    try:
        yield function
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP FUNCTION {function}; DROP FUNCTION {function}_deliver")
