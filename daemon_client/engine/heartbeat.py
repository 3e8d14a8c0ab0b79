"""Liveness of each runtime: over the socket while it answers, over HTTP otherwise, each runtime on its own."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable
from typing import Any

import uuid_utils

from daemon_client import protocol
from daemon_client.engine.context import Context
from daemon_client.errors import HttpError, is_transient
from daemon_client.protocol import Json
from daemon_client.transport.retry import REQUESTED_RESULT, attempt

log = logging.getLogger(__name__)

DROP_CONNECTIONS_AFTER = 2
PENDING_WORK_SPACING = 1.0
PENDING_WORK_TIMEOUT = 15.0


class Heartbeats:
    """Composes and sends heartbeats. They name what this process holds, so the server can tell a lost task from a
    working one: `seq` grows with every heartbeat composed, `incarnation` with every process."""

    def __init__(self, ctx: Context, spawn: Callable[[Any], Any], on_gone: Callable[[str], None]) -> None:
        self._ctx, self._spawn, self._on_gone = ctx, spawn, on_gone
        self._incarnation = str(uuid_utils.uuid7())
        self._seq = itertools.count(1)
        self._acked: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._extra: dict[str, float] = {}

    def compose(self, runtime_id: str) -> Json:
        ctx = self._ctx
        held = [run.task.key for run in ctx.active.of_runtime(runtime_id)]
        held += [(ending.task_id, ending.claim_token) for ending in ctx.outbox.held(runtime_id)]
        return {
            "runtime_id": runtime_id,
            "supports_batch_import": True,
            "active_tasks": [{"task_id": task_id, "claim_token": token} for task_id, token in dict.fromkeys(held)],
            "incarnation": self._incarnation,
            "seq": next(self._seq),
            "slots": {"total": ctx.slots.total, "free": ctx.slots.free},
        }

    def first_delay(self) -> float:
        return random.uniform(0, self._ctx.settings.heartbeat_interval)

    async def run_once(self, runtime_id: str) -> float:
        """One tick of one runtime: an HTTP heartbeat, unless the socket had one acknowledged lately."""
        fresh = 2 * self._ctx.settings.heartbeat_interval
        if self._ctx.clock.monotonic() - self._acked.get(runtime_id, float("-inf")) >= fresh:
            await self._beat(runtime_id, protocol.HTTP_TIMEOUT)
        return self._ctx.settings.heartbeat_interval

    async def _beat(self, runtime_id: str, limit: float) -> None:
        try:
            answer = await self._ctx.api.heartbeat(self.compose(runtime_id), timeout=limit)
        except HttpError as error:
            if error.runtime_not_found:
                self._on_gone(runtime_id)
            else:
                await self._failed(runtime_id, error)
        except Exception as error:
            await self._failed(runtime_id, error)
        else:
            if self._failures.pop(runtime_id, 0):
                self._ctx.outbox.retry_now()
            self._act(runtime_id, answer)

    async def _failed(self, runtime_id: str, error: Exception) -> None:
        log.warning("heartbeat of runtime %s: %s", runtime_id, error)
        if not is_transient(error):
            return
        count = self._failures[runtime_id] = self._failures.get(runtime_id, 0) + 1
        if count == DROP_CONNECTIONS_AFTER:
            await self._ctx.api.http.drop_connections()

    # -- over the socket --

    def on_ack(self, payload: Json) -> None:
        runtime_id = payload.get("runtime_id")
        if not isinstance(runtime_id, str) or not runtime_id:
            return
        self._acked[runtime_id] = self._ctx.clock.monotonic()
        self._act(runtime_id, payload)

    def on_disconnect(self) -> None:
        """Acknowledgements of a dead socket say nothing about the next half minute."""
        self._acked.clear()

    def on_pending_work(self, runtime_id: str) -> None:
        """The server has something for this runtime: one extra heartbeat, at most one a second."""
        now = self._ctx.clock.monotonic()
        if self._ctx.index.runtime(runtime_id) is None:
            return
        if now - self._extra.get(runtime_id, float("-inf")) >= PENDING_WORK_SPACING:
            self._extra[runtime_id] = now
            self._spawn(self._beat(runtime_id, PENDING_WORK_TIMEOUT))

    # -- what the server asked for --

    def _act(self, runtime_id: str, answer: Json) -> None:
        if answer.get("runtime_gone") is True:
            self._on_gone(runtime_id)
            return
        for route, request_id, body in _requested(answer):
            self._spawn(self._answer(route, runtime_id, request_id, body))

    async def _answer(self, route: str, runtime_id: str, request_id: str, body: Json) -> None:
        try:
            await attempt(
                lambda: self._ctx.api.requested_result(route, runtime_id, request_id, body),
                REQUESTED_RESULT,
                self._ctx.clock,
            )
        except Exception as error:
            log.warning("result of request %s: %s", request_id, error)


_NO_SKILLS: Json = {
    "status": "completed",
    "skills": [],
    "supported": False,
    "mcp_servers": [],
    "mcp_supported": False,
}
_NO_MODELS: Json = {"status": "completed", "models": [], "supported": False, "fallback": False}
_NO_UPDATE: Json = {"status": "failed", "error": "this daemon is updated by its package manager"}
_NO_IMPORT: Json = {"status": "failed", "error": "this daemon does not import local skills"}


def _requested(answer: Json) -> list[tuple[str, str, Json]]:
    """Route, request and answer for all that a heartbeat carried: a request without an answer leaves a user waiting."""
    single = {
        "pending_update": (protocol.ROUTE_UPDATE_RESULT, _NO_UPDATE),
        "pending_model_list": (protocol.ROUTE_MODELS_RESULT, _NO_MODELS),
        "pending_local_skills": (protocol.ROUTE_LOCAL_SKILLS_RESULT, _NO_SKILLS),
    }
    found = [(route, answer.get(name), body) for name, (route, body) in single.items()]
    imports = answer.get("pending_local_skill_imports") or [answer.get("pending_local_skill_import")]
    if isinstance(imports, list):
        found += [(protocol.ROUTE_LOCAL_SKILLS_IMPORT_RESULT, item, _NO_IMPORT) for item in imports]
    return [
        (route, item["id"], body)
        for route, item, body in found
        if isinstance(item, dict) and isinstance(item.get("id"), str)
    ]
