"""Why each claim request gave each runtime what it gave: one outcome of a closed list, kept as changes, not polls.

A delivery is recorded by its own claim event. Outcomes with an error, or with a task that could not be handed over, are
rows of `claim_decision`. All others are counted in memory and written in batches: the repeats of one outcome become one
row with its first time, its last time and a count. While a runtime stays idle it has one row for "empty, asked" and
one for "empty, known", however often they take turns.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec
import psycopg

from queue_app.models.base import new_id
from queue_app.sql import door

log = logging.getLogger(__name__)

NAME: Final = "multica-decisions"
FLUSH_EVERY: Final = 30.0
"""Seconds between two writes of what was counted; an error is written within moments."""
KEPT_MOST: Final = 20_000
SAME_RUN: Final = 3600.0
"""Seconds of silence after which a repeat begins a row of its own."""


class Outcome(StrEnum):
    """The closed list. The first two are recorded by the event of their delivery."""

    CLAIMED = "claimed"
    RECLAIMED = "reclaimed_dispatched"
    EMPTY_CACHE_HIT = "empty_cache_hit"
    EMPTY_DB = "empty_db"
    BLOCKED = "blocked"
    BATCH_FULL = "batch_full"
    RUNTIME_UNKNOWN = "runtime_unknown"
    RUNTIME_FOREIGN = "runtime_foreign"
    RUNTIME_OFFLINE = "runtime_offline"
    RUNTIME_STALE = "runtime_stale"
    RUNTIME_PAUSED = "runtime_paused"
    RUNTIME_WITHOUT_OWNER = "runtime_without_owner"
    ERROR_PROMOTE = "error_promote_deferred"
    ERROR_CLAIM = "error_claim"
    ERROR_LATE = "error_claim_late"
    ERROR_ANSWER = "error_claim_answer"
    ERROR_IDENTITY = "error_invalid_task_identity"
    ERROR_SOURCE = "error_source_missing"


DELIVERED: Final = frozenset({Outcome.CLAIMED, Outcome.RECLAIMED})
IDLE: Final = frozenset({Outcome.EMPTY_CACHE_HIT, Outcome.EMPTY_DB})
_TEXT: Final[dict[Outcome, str]] = {
    Outcome.CLAIMED: "got work",
    Outcome.RECLAIMED: "got again what an earlier answer may have lost",
    Outcome.EMPTY_CACHE_HIT: "nothing queued, known without asking the database",
    Outcome.EMPTY_DB: "nothing queued",
    Outcome.BLOCKED: "work is queued, but none of it may start now",
    Outcome.BATCH_FULL: "work is queued, but the daemon had no room left",
    Outcome.RUNTIME_UNKNOWN: "no such runtime",
    Outcome.RUNTIME_FOREIGN: "the runtime belongs to another workspace or daemon",
    Outcome.RUNTIME_OFFLINE: "the runtime is offline",
    Outcome.RUNTIME_STALE: "the runtime was not heard of for too long",
    Outcome.RUNTIME_PAUSED: "the runtime is paused",
    Outcome.RUNTIME_WITHOUT_OWNER: "the runtime has no owner to act for",
    Outcome.ERROR_PROMOTE: "deferred work could not be queued this time",
    Outcome.ERROR_CLAIM: "the claim failed, nothing was taken",
    Outcome.ERROR_LATE: "the claim took too long and was put back",
    Outcome.ERROR_ANSWER: "the answer could not be built, the task was put back",
    Outcome.ERROR_IDENTITY: "the task does not fit its agent, it was ended",
    Outcome.ERROR_SOURCE: "what the task is about is gone, it was ended",
}


def describe(outcome: str) -> str:
    """An outcome in words."""
    return _TEXT.get(Outcome(outcome), outcome)


@dataclass
class _Entry:
    """One row to be: `merges` if it may continue the newest row of its runtime."""

    runtime_id: str
    outcome: str
    door: str
    workspace_id: str | None
    first_at: datetime
    last_at: datetime
    merges: bool
    kin: list[str]
    task_id: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    count: int = 1
    id: UUID = field(default_factory=new_id)


@dataclass
class _Run:
    """The unbroken repetition of one kind of outcome at one runtime; `first` says that nothing came before it here."""

    kin: frozenset[str]
    first: bool
    entries: dict[tuple[str, str], _Entry] = field(default_factory=dict)


def _kin(outcome: str) -> frozenset[str]:
    """The outcomes whose change into each other is no change."""
    return IDLE if outcome in IDLE else frozenset({outcome})


class Ledger:
    """The outcomes that are not written yet, and the thread that writes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[_Entry] = []
        self._runs: dict[str, _Run] = {}
        self._soon = threading.Event()
        self._writer: tuple[int, threading.Thread] | None = None

    def note(self, runtime_id: str, outcome: str, door: str, workspace_id: str | None = None) -> None:
        """Count one outcome without an error. A delivery only ends the run of repeats before it."""
        now = datetime.now(UTC)
        with self._lock:
            run = self._runs.get(runtime_id)
            if run is None or outcome not in run.kin:
                run = self._runs[runtime_id] = _Run(_kin(outcome), first=run is None)
            if outcome in DELIVERED:
                return
            entry = run.entries.get((outcome, door))
            if entry is None:
                entry = _Entry(runtime_id, outcome, door, workspace_id, now, now, run.first, sorted(run.kin), count=0)
                run.entries[outcome, door] = entry
                self._add(entry)
            entry.count += 1
            entry.last_at = now

    def error(
        self,
        runtime_id: str,
        outcome: str,
        door: str,
        *,
        workspace_id: str | None = None,
        task_id: str | None = None,
        text: str = "",
    ) -> None:
        """Keep an outcome with an error, or with a task that was not handed over, as a row of its own."""
        now = datetime.now(UTC)
        detail = {"text": text[:2000]} if text else {}
        with self._lock:
            self._runs[runtime_id] = _Run(frozenset(), first=False)
            self._add(_Entry(runtime_id, outcome, door, workspace_id, now, now, False, [], task_id, detail))
        self._soon.set()

    def _add(self, entry: _Entry) -> None:
        self._entries.append(entry)
        if len(self._entries) > KEPT_MOST:
            del self._entries[: KEPT_MOST // 10]
        self._ensure_writer()

    def _ensure_writer(self) -> None:
        pid = os.getpid()
        if self._writer is None or self._writer[0] != pid or not self._writer[1].is_alive():
            thread = threading.Thread(target=self._write_on, name="claim-decisions", daemon=True)
            self._writer = (pid, thread)
            thread.start()

    def _write_on(self) -> None:
        while True:
            self._soon.wait(FLUSH_EVERY)
            self._soon.clear()
            try:
                self.flush()
            except Exception as error:
                log.warning("claim decisions not written, kept for the next time: %s", type(error).__name__)

    def flush(self) -> int:
        """Write what was counted; the number of outcomes written. On an error nothing is lost and it is raised."""
        with self._lock:
            entries, self._entries = self._entries, []
            # What is written may be continued in the table; a run that a delivery or an error began may not.
            self._runs = {key: _Run(run.kin, False) for key, run in self._runs.items() if run.kin <= DELIVERED}
        if not entries:
            return 0
        try:
            _write(entries)
        except Exception:
            with self._lock:
                self._entries[:0] = entries
            raise
        return sum(entry.count for entry in entries)


# A row is continued only if nothing of another kind came after it.
_WRITE = """
WITH incoming AS MATERIALIZED (
  SELECT * FROM jsonb_to_recordset(%s::jsonb) AS x(id uuid, runtime_id uuid, workspace_id uuid, task_id uuid,
    outcome text, door text, detail jsonb, first_at timestamptz, last_at timestamptz, count bigint, merges boolean,
    kin jsonb)
), latest AS MATERIALIZED (
  SELECT i.id AS incoming, d.id AS row
    FROM incoming i
   CROSS JOIN LATERAL (SELECT e.* FROM claim_decision e
                        WHERE e.runtime_id = i.runtime_id AND e.outcome = i.outcome AND e.door = i.door
                          AND e.task_id IS NULL AND e.last_at > i.first_at - make_interval(secs => %s)
                        ORDER BY e.last_at DESC LIMIT 1) d
   WHERE i.merges AND NOT EXISTS (
           SELECT 1 FROM claim_decision o WHERE o.runtime_id = i.runtime_id AND o.last_at > d.last_at
              AND NOT i.kin ? o.outcome)
), grown AS (
  UPDATE claim_decision d SET last_at = greatest(d.last_at, i.last_at), count = d.count + i.count
    FROM latest l JOIN incoming i ON i.id = l.incoming
   WHERE d.id = l.row
)
INSERT INTO claim_decision (id, runtime_id, workspace_id, task_id, outcome, door, detail, first_at, last_at, count)
SELECT i.id, i.runtime_id, i.workspace_id, i.task_id, i.outcome, i.door, i.detail, i.first_at, i.last_at, i.count
  FROM incoming i WHERE i.id NOT IN (SELECT l.incoming FROM latest l)
"""


def _write(entries: Iterable[_Entry]) -> None:
    """One statement on a connection of its own, so that an idle poll stays without any on the claim door."""
    rows = msgspec.json.encode([entry.__dict__ for entry in entries]).decode()
    with psycopg.connect(**door.parameters(NAME), autocommit=True) as connection:
        connection.execute(_WRITE, (rows, SAME_RUN))


ledger = Ledger()
note = ledger.note
error = ledger.error
flush = ledger.flush


def _last_words() -> None:
    try:
        ledger.flush()
    except Exception as error:
        log.debug("last claim decisions not written: %s", type(error).__name__)


atexit.register(_last_words)
