"""Durable outbox of task endings: on disk before it is sent, gone only when the server has taken or refused it.

An ending is the tail of the transcript, the session, the usage and the terminal report, delivered in this order. It
survives the process and an outage of any length, and is replayed after a reconnect and at start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from daemon_client import protocol
from daemon_client.clock import Clock
from daemon_client.config import write_private
from daemon_client.engine.messages import first_batch
from daemon_client.engine.signals import Wake
from daemon_client.errors import HttpError, is_transient
from daemon_client.protocol import ClaimedTask, Json
from daemon_client.transport.http import ServerApi
from daemon_client.transport.retry import TERMINAL

log = logging.getLogger(__name__)

Kind = Literal["complete", "fail", "cancel_ack"]
# After so many server errors about one ending, what follows it (the usage's report, orphan recovery) no longer waits.
PATIENCE: Final = 6


@dataclass
class Ending:
    """How one delivery ended. `body` is the terminal report's, without the claim token."""

    task_id: str
    runtime_id: str
    claim_token: str
    kind: Kind
    body: Json
    usage: list[Json] = field(default_factory=list)
    messages: list[Json] = field(default_factory=list)
    session: Json = field(default_factory=dict)
    server_url: str = ""
    written_at: str = ""
    refusals: int = 0

    @property
    def name(self) -> str:
        key = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.task_id}\n{self.claim_token}")
        return f"{key}.json"

    @property
    def task(self) -> ClaimedTask:
        return ClaimedTask(self.task_id, "", self.runtime_id, "", claim_token=self.claim_token)


class Outbox:
    """The endings that the server has not taken yet, of this server and profile."""

    def __init__(self, directory: Path, api: ServerApi, clock: Clock, server_url: str) -> None:
        self._directory, self._api, self._clock, self._server_url = directory, api, clock, server_url
        self._endings: dict[str, Ending] = {}
        self._due: dict[str, tuple[float, int]] = {}
        self._sending: set[str] = set()
        self.wake = Wake()
        self.settled: Callable[[], None] = lambda: None

    # -- what waits --

    def __len__(self) -> int:
        return len(self._endings)

    def held(self, runtime_id: str) -> list[Ending]:
        return [ending for ending in self._endings.values() if ending.runtime_id == runtime_id]

    def blocks_recovery(self, runtime_id: str) -> bool:
        """True while an ending of that runtime still has a fair chance to arrive before its orphans are recovered."""
        return any(ending.refusals < PATIENCE for ending in self.held(runtime_id))

    async def load(self) -> None:
        """Read what an earlier process left. A file that cannot be read is set aside, never deleted."""
        for name, ending in await asyncio.to_thread(_read_all, self._directory):
            if ending.server_url == self._server_url:
                self._endings[name] = ending
                self._due[name] = (0.0, 0)

    async def put(self, ending: Ending) -> None:
        """Make an ending durable. When the disk refuses it is kept in memory: still sent, only not crash-proof."""
        ending = replace(ending, server_url=self._server_url, written_at=self._clock.now().isoformat())
        self._endings[ending.name] = ending
        self._due[ending.name] = (self._clock.monotonic(), 0)
        await self._write(ending)

    async def _write(self, ending: Ending) -> None:
        try:
            await asyncio.to_thread(_write, self._directory / ending.name, json.dumps(asdict(ending)).encode())
        except OSError as error:
            log.error("the ending of task %s cannot be written to disk: %s", ending.task_id, error)

    # -- sending --

    async def deliver(self, ending: Ending) -> bool:
        """Send one ending now; True when it is settled. Transient errors keep it and plan the next attempt."""
        name = ending.name
        current = self._endings.get(name)
        if current is None or name in self._sending:
            return current is None
        self._sending.add(name)
        try:
            await self._send(current)
        except Exception as error:
            if not await self._keep(current, error):
                return False
        finally:
            self._sending.discard(name)
        if self._endings.get(name) is current:
            await self._forget(current)
        return name not in self._endings

    async def _send(self, ending: Ending) -> None:
        task = ending.task
        left = ending.messages
        while batch := first_batch(left):
            await self._side(ending, "transcript", self._api.messages, batch)
            left = left[len(batch) :]
        await self._side(ending, "session", self._api.session, ending.session)
        await self._side(ending, "usage", self._api.usage, ending.usage)
        report = {"complete": self._api.complete, "fail": self._api.fail, "cancel_ack": self._api.cancel_ack}
        await report[ending.kind](task, ending.body)

    async def _side(self, ending: Ending, what: str, call: Callable[..., Awaitable[None]], data: Any) -> None:
        """Send one part that comes before the report. A refusal of the part does not hold up the report; an outage
        does, so that nothing is lost, but not for ever when only this part fails."""
        if not data:
            return
        try:
            await call(ending.task, data)
        except HttpError as error:
            if error.claim_is_over or (error.transient and ending.refusals < PATIENCE):
                raise
            log.warning("%s of task %s was not taken: %s", what, ending.task_id, error)

    async def _keep(self, ending: Ending, error: Exception) -> bool:
        """Decide about a failed attempt. True when the ending is settled, False when it waits for the next attempt."""
        if isinstance(error, HttpError) and error.claim_is_over:
            log.info("task %s: the server no longer takes reports of this delivery (%s)", ending.task_id, error.code)
            return True
        if not is_final(error):
            if isinstance(error, HttpError):
                ending.refusals += 1
            self._plan(ending)
            log.warning("report of task %s waits: %s", ending.task_id, error)
            return False
        log.warning("report of task %s was refused: %s", ending.task_id, error)
        if ending.kind != "complete":
            return True
        await self._turn_into_failure(ending, error)
        return False

    async def _turn_into_failure(self, ending: Ending, error: Exception) -> None:
        kept = {k: v for k, v in ending.body.items() if k != "output"}
        body: Json = kept | {"error": f"complete task failed: {error}", "failure_reason": protocol.REASON_UNKNOWN}
        await self.put(replace(ending, kind="fail", body=body, usage=[], messages=[], session={}, refusals=0))
        self.wake.set()

    def _plan(self, ending: Ending) -> None:
        _, tries = self._due.get(ending.name, (0.0, 0))
        wait = TERMINAL.delays[min(tries, len(TERMINAL.delays) - 1)]
        self._due[ending.name] = (self._clock.monotonic() + wait, tries + 1)

    async def _forget(self, ending: Ending) -> None:
        self._endings.pop(ending.name, None)
        self._due.pop(ending.name, None)
        path = self._directory / ending.name
        try:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        except OSError as error:
            log.error("%s cannot be deleted: %s", path, error)
        self.settled()

    # -- replay --

    def retry_now(self) -> None:
        """The server is reachable again: every waiting ending is due at once."""
        now = self._clock.monotonic()
        self._due = dict.fromkeys(self._due, (now, 0))
        self.wake.set()

    async def replay(self) -> None:
        """One attempt for each ending that is due, oldest first."""
        now = self._clock.monotonic()
        due = [ending for name, ending in self._endings.items() if self._due.get(name, (0.0, 0))[0] <= now]
        for ending in sorted(due, key=lambda each: each.written_at):
            await self.deliver(ending)

    async def run_once(self) -> float:
        await self.replay()
        if not self._due:
            return 3600.0
        return max(0.0, min(when for when, _ in self._due.values()) - self._clock.monotonic())


def is_final(error: BaseException) -> bool:
    """True when the server has refused for good. Not for a lost login, which says nothing about the task, and not for a
    404 or 405 without an error object: that is some router on the way, not the server's word about this task."""
    if not isinstance(error, HttpError):
        return not is_transient(error)
    if error.transient or error.status == 401 or error.status < 400:
        return False
    return error.status not in (404, 405) or _is_object(error.body)


def _is_object(body: str) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def _write(path: Path, data: bytes) -> None:
    write_private(path, data)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read_all(directory: Path) -> list[tuple[str, Ending]]:
    found = []
    for path in sorted(directory.glob("*.json")) if directory.is_dir() else []:
        try:
            ending = Ending(**json.loads(path.read_bytes()))
            found.append((ending.name, ending))
        except (OSError, ValueError, TypeError) as error:
            log.error("%s is not a readable task ending and is set aside: %s", path, error)
            path.rename(path.with_suffix(".unreadable"))
    return found
