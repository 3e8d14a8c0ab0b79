"""One claim round: over the socket when negotiated, else HTTP, else per runtime; never twice for one uncertain answer.

| situation | what happens |
| --- | --- |
| inside the window after an uncertain outcome | nothing is claimed |
| first round after such a window over the socket | HTTP, once |
| batch route answered 404 since the last connect | one claim per runtime |
| socket negotiated `rpc-v1` on this connection | RPC |
| RPC surely not sent, or refused | HTTP in the same round |
| RPC or HTTP request may have arrived, no answer | a window begins, no fallback |
"""

from __future__ import annotations

import logging

from daemon_client import protocol
from daemon_client.clock import Clock
from daemon_client.errors import HttpError, RpcRejected, RpcUnavailable, RpcUncertain, TransportError
from daemon_client.protocol import ClaimedTask, Json
from daemon_client.transport.http import ServerApi, claimed_tasks
from daemon_client.transport.rpc import RpcClient

log = logging.getLogger(__name__)


class Claimer:
    """Chooses the transport of each claim. A claim too few is always preferred to a claim twice."""

    def __init__(self, daemon_id: str, api: ServerApi, rpc: RpcClient, clock: Clock) -> None:
        self._daemon_id, self._api, self._rpc, self._clock = daemon_id, api, rpc, clock
        self._per_runtime = False
        self._http_once = False
        self._window_ends = float("-inf")

    def on_connect(self) -> None:
        """A server that lacked the batch route may have been upgraded meanwhile."""
        self._per_runtime = False

    @property
    def blocked_for(self) -> float:
        """Seconds until the uncertain window is over; 0 outside of one."""
        return max(0.0, self._window_ends - self._clock.monotonic())

    async def claim(self, runtime_ids: list[str], most: int) -> list[ClaimedTask]:
        """Up to `most` tasks for these runtimes. Raises what the last transport raised when nothing was claimed."""
        if self.blocked_for:
            return []
        if self._per_runtime:
            return await self._claim_per_runtime(runtime_ids, most)
        body: Json = {"daemon_id": self._daemon_id, "runtime_ids": runtime_ids, "max_tasks": most}
        if self._http_once:
            self._http_once = False
            return await self._claim_http(body)
        try:
            return claimed_tasks(await self._rpc.call(protocol.RPC_TASKS_CLAIM, body, protocol.CLAIM_TIMEOUT))
        except (RpcUnavailable, RpcRejected) as error:
            log.debug("claim goes to HTTP: %s", error)
            return await self._claim_http(body)
        except RpcUncertain as error:
            self._begin_window(f"claim over the socket: {error}")
            self._http_once = True
            return []

    def _begin_window(self, text: str) -> None:
        log.warning("%s; its outcome is unknown, no claim for %g s", text, protocol.UNCERTAIN_WINDOW)
        self._window_ends = self._clock.monotonic() + protocol.UNCERTAIN_WINDOW

    async def _claim_http(self, body: Json) -> list[ClaimedTask]:
        limit = self._clock.real_seconds(self._clock.io_seconds(protocol.CLAIM_TIMEOUT))
        try:
            return await self._api.claim(body | {"timeout_ms": round(limit * 1000)})
        except HttpError as error:
            if error.status != 404:
                raise
            log.info("the server has no batch claim; claiming runtime by runtime until the next connect")
            self._per_runtime = True
            return await self._claim_per_runtime(body["runtime_ids"], body["max_tasks"])
        except TransportError as error:
            if not error.unsent:
                self._begin_window(f"claim over HTTP: {error}")
            raise

    async def _claim_per_runtime(self, runtime_ids: list[str], most: int) -> list[ClaimedTask]:
        """Old servers. What was claimed before an error is kept; the error counts only when nothing was."""
        tasks: list[ClaimedTask] = []
        for runtime_id in runtime_ids:
            while len(tasks) < most:
                try:
                    task = await self._api.claim_runtime(runtime_id)
                except Exception as error:
                    if not tasks:
                        raise
                    log.warning("claim for runtime %s: %s", runtime_id, error)
                    return tasks
                if task is None:
                    break
                tasks.append(task)
        return tasks
