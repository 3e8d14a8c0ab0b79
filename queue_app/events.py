"""What goes out after commit: events to clients, the bump of the empty verdict, the wake-up of the daemon.

Always in that order, so that a woken daemon never meets a verdict older than its work. Everything sent is a hint:
losing all of it costs latency, never a task; whoever needs the truth reads the tables.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from channels.layers import get_channel_layer
from django.db import transaction

from queue_app import empty_claims, hooks
from queue_app.models import AgentTask

log = logging.getLogger(__name__)

EVENT_OF_VERB = {
    "enqueue": "task:queued",
    "promote": "task:queued",
    "requeue": "task:queued",
    "claim": "task:dispatch",
    "park": "task:waiting_local_directory",
    "start": "task:running",
    "complete": "task:completed",
    "cancel": "task:cancelled",
}
_FAILURES = ("fail", "recover_orphan", "time_out", "lose_runtime", "expire_queued", "expire_deferred")
EVENT_OF_VERB.update(dict.fromkeys(_FAILURES, "task:failed"))

SEND_LIMIT = 0.25
"""Seconds that one send may take before it is given up."""


def workspace_group(workspace_id: UUID | str) -> str:
    """The group of a workspace's browsers."""
    return f"workspace.{workspace_id}"


def runtime_group(runtime_id: UUID | str) -> str:
    """The group of the sockets that serve a runtime."""
    return f"runtime.{runtime_id}"


def user_group(user_id: UUID | str) -> str:
    """The group of a user's daemons, for hints about the account."""
    return f"user.{user_id}"


class _Publisher:
    """One event loop on one thread for the process, so that callers of any kind send in order and never wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="events", daemon=True).start()
                atexit.register(self.flush)
            return self._loop

    def send(self, group: str, message: dict[str, Any]) -> None:
        asyncio.run_coroutine_threadsafe(self._send(group, message), self._running())

    async def _send(self, group: str, message: dict[str, Any]) -> None:
        layer = get_channel_layer()
        if layer is None:
            return
        try:
            await asyncio.wait_for(layer.group_send(group, message), SEND_LIMIT)
        except Exception as error:
            log.debug("hint to %s not sent: %s", group, error)

    def flush(self, limit: float = 1.0) -> None:
        """Wait until what was sent so far has gone out, at most `limit` seconds."""
        if self._loop is None or not self._loop.is_running():
            return

        async def drain() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            await asyncio.wait(others, timeout=limit) if others else None

        asyncio.run_coroutine_threadsafe(drain(), self._loop).result(limit * 2)


_publisher = _Publisher()
flush = _publisher.flush


def publish(workspace_id: UUID | str, event: str, payload: dict[str, Any]) -> None:
    """Send an event to the browsers of a workspace, now. Call it after commit."""
    hooks.tell_listeners(event, {"workspace_id": str(workspace_id), **payload})
    frame = {"type": event, "payload": payload}
    _publisher.send(workspace_group(workspace_id), {"type": "live.event", "frame": frame})


def hint(group: str, frame_type: str, payload: dict[str, Any]) -> None:
    """Send a hint frame to the daemons of a group, now. Call it after commit."""
    _publisher.send(group, {"type": "daemon.hint", "frame": {"type": frame_type, "payload": payload}})


def wake(runtime_ids: Iterable[UUID | str], task_id: UUID | str | None = None) -> None:
    """Bump the runtimes' verdicts, then tell their daemons to look. Call it after commit."""
    ids = sorted({str(runtime_id) for runtime_id in runtime_ids if runtime_id is not None})
    empty_claims.bump(ids)
    for runtime_id in ids:
        payload = {"runtime_id": runtime_id, "task_id": str(task_id or "")}
        hint(runtime_group(runtime_id), "daemon:task_available", payload)


def payload_of(task: AgentTask) -> dict[str, Any]:
    """The base payload of a task's events: ids as strings."""
    payload = {
        "task_id": str(task.id),
        "agent_id": str(task.agent_id),
        "issue_id": str(task.issue_id or ""),
        "status": task.status,
        "seq": task.event_seq,
    }
    if task.chat_session_id:
        payload["chat_session_id"] = str(task.chat_session_id)
    return payload


def announce(verb: str, tasks: Iterable[AgentTask], *, wakes: bool = True, **extra: Any) -> None:
    """After commit: tell clients that `verb` moved `tasks`, then bump and wake each runtime once.

    `wakes` is False where the verb makes nothing claimable, or must wake nobody (a requeue).
    """
    rows = list(tasks)
    if rows:
        transaction.on_commit(lambda: _announce(verb, rows, wakes, extra))


def _announce(verb: str, rows: list[AgentTask], wakes: bool, extra: dict[str, Any]) -> None:
    event = EVENT_OF_VERB.get(verb)
    if event is not None:
        for row in rows:
            publish(row.workspace_id, event, {**payload_of(row), **_particulars(event, row), **extra})
    if wakes:
        only = rows[0].id if len(rows) == 1 and verb in ("enqueue", "promote") else None
        wake((row.runtime_id for row in rows if row.runtime_id), only)
    else:
        empty_claims.bump(sorted({str(row.runtime_id) for row in rows if row.runtime_id}))


def _particulars(event: str, row: AgentTask) -> dict[str, Any]:
    if event == "task:dispatch":
        return {"runtime_id": str(row.runtime_id)}
    if event == "task:failed":
        return {"failure_reason": row.failure_reason}
    if event == "task:waiting_local_directory" and row.wait_reason and "/" not in row.wait_reason:
        return {"wait_reason": row.wait_reason}
    return {}
