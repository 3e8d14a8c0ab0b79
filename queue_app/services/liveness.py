"""That a runtime was heard, kept in Redis so that a heartbeat of a runtime at rest costs no statement.

The key `mul:runtime:hb:<id>` lives 1.5 times `HEARTBEAT_FLUSH` and holds the runtime's workspace and when the table was
last told. While that is younger than `HEARTBEAT_FLUSH` nothing is written. After that the heartbeat waits in this
process for the next batch, which the first heartbeat of any runtime takes along once it is due; so a live row is never
older than flush + batch + one heartbeat, well inside the freshness window. Without Redis each heartbeat reads its row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.models.signals import post_delete

from queue_app import empty_claims, redis
from queue_app.conf import conf
from queue_app.models import AgentRuntime
from queue_app.sql.runtimes import BACK_ONLINE, HEARD


@dataclass(frozen=True)
class Known:
    """What Redis says of a runtime: its workspace, seconds since its row was written, and its version of work."""

    workspace_id: UUID
    age: float
    version: str


@dataclass(frozen=True)
class _Waiting:
    heard: float
    slots: dict[str, Any] | None
    workspace_id: UUID


def key_of(runtime_id: UUID | str) -> str:
    """Where the sign of life of a runtime lives."""
    return f"mul:runtime:hb:{runtime_id}"


def _lives() -> int:
    return max(1, int(conf.HEARTBEAT_FLUSH * 1500))


def look(runtime_id: UUID) -> Known | None:
    """Prolong the sign of life, if there is one, and say what it holds. One round trip."""

    def ask(pipe: Any) -> None:
        pipe.getex(key_of(runtime_id), px=_lives())
        pipe.get(empty_claims.version_key(str(runtime_id)))

    answers = redis.pipeline(ask)
    if not answers or not answers[0]:
        return None
    workspace, _, written = str(answers[0]).partition("|")
    return Known(UUID(workspace), max(0.0, time.time() - float(written)), str(answers[1] or 0))


def keep(runtimes: Sequence[tuple[UUID, UUID]], *, age: float = 0.0) -> None:
    """Set the signs of life of runtimes, (id, workspace), whose rows were written `age` seconds ago."""
    if not runtimes:
        return
    written = f"{time.time() - age:.3f}"

    def put(pipe: Any) -> None:
        for runtime_id, workspace_id in runtimes:
            pipe.set(key_of(runtime_id), f"{workspace_id}|{written}", px=_lives())

    redis.pipeline(put)


def forget(runtime_ids: Iterable[UUID]) -> None:
    """The next heartbeat of these runtimes reads and writes their rows: after they went offline or away."""
    keys = [key_of(runtime_id) for runtime_id in runtime_ids]
    if keys:
        redis.call(lambda client: client.delete(*keys))


def alive(runtime_ids: Sequence[UUID]) -> set[UUID]:
    """Which of these runtimes were heard within the life of their sign; empty when Redis cannot say.

    A runtime in this set must not be taken offline: its row may lag behind by a batch.
    """
    if not runtime_ids:
        return set()
    found = redis.call(lambda client: client.mget([key_of(runtime_id) for runtime_id in runtime_ids]))
    values: list[Any] = list(found) if isinstance(found, list) else []
    return {runtime_id for runtime_id, value in zip(runtime_ids, values, strict=False) if value}


# ------------------------------------------------------------------------------------------------- rows in batches


class _Batch:
    """Heartbeats that wait to be written, at most one a runtime, and since when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[UUID, _Waiting] = {}
        self._since = 0.0

    def add(self, runtime_id: UUID, waiting: _Waiting) -> None:
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting[runtime_id] = waiting

    def take(self, *, due_after: float) -> dict[UUID, _Waiting]:
        with self._lock:
            if not self._waiting or time.monotonic() - self._since < due_after:
                return {}
            taken, self._waiting = self._waiting, {}
            return taken


_batch = _Batch()


def write_later(runtime_id: UUID, workspace_id: UUID, slots: dict[str, Any] | None) -> None:
    """Put a heartbeat into the next batch."""
    _batch.add(runtime_id, _Waiting(time.monotonic(), slots, workspace_id))


def flush_if_due() -> int:
    """Write the batch if its oldest heartbeat has waited long enough; the number of rows written."""
    return flush(due_after=max(0.0, conf.HEARTBEAT_BATCH - conf.HEARTBEAT_INTERVAL))


def flush(*, due_after: float = 0.0) -> int:
    """Write all heartbeats that wait, as one statement. A runtime that is not online any more loses its sign of life,
    so its next heartbeat takes the slow way and brings it back. What cannot be written comes again by itself."""
    taken = _batch.take(due_after=due_after)
    if not taken:
        return 0
    ids = sorted(taken)
    params = {
        "ids": ids,
        "ages": [max(0.0, time.monotonic() - taken[i].heard) for i in ids],
        "slots": [_json(taken[i].slots) for i in ids],
        "freshness": conf.RUNTIME_FRESHNESS,
    }
    with connection.cursor() as cursor:
        cursor.execute(HEARD, params)
        written = {row[0] for row in cursor.fetchall()}
    keep([(i, taken[i].workspace_id) for i in ids if i in written])
    forget(i for i in ids if i not in written)
    return len(written)


def write_now(runtime: AgentRuntime, slots: dict[str, Any] | None) -> None:
    """Bring one runtime online, or keep it there, at once."""
    params = {"id": runtime.pk, "slots": _json(slots), "freshness": conf.RUNTIME_FRESHNESS}
    with connection.cursor() as cursor:
        cursor.execute(BACK_ONLINE, params)
    keep([(runtime.pk, runtime.workspace_id)])


def _json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _deleted(instance: AgentRuntime, **_: Any) -> None:
    runtime_id = instance.pk
    transaction.on_commit(lambda: forget([runtime_id]))


post_delete.connect(_deleted, sender=AgentRuntime, dispatch_uid="liveness-runtime-deleted")
