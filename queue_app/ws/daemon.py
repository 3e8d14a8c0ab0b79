"""The daemon socket: hints out, heartbeats and claims in. Losing all of it costs latency, never a task.

Nothing waits for anything else: the reader starts a job for each heartbeat and each claim and reads on, answers leave
as they come, by id, and hints of one kind for one runtime that have not left yet are one hint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from django.db import InterfaceError, OperationalError

from daemon_client import protocol
from queue_app import auth, events
from queue_app.auth import Caller
from queue_app.conf import conf
from queue_app.error_map import answer_to
from queue_app.errors import (
    AuthError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    QueueError,
    RuntimeNotFoundError,
    UnavailableError,
)
from queue_app.services import access, claim, heartbeat
from queue_app.wire.daemon import Claim, Heartbeat, ident_of
from queue_app.wire.decode import convert
from queue_app.wire.frames import RpcRequest, frame, read_frame, rpc_response
from queue_app.ws.connection import NOT_AUTHORISED, TOO_BIG, Connection, Receive, Scope, Send, header, refuse
from queue_app.ws.pool import POOL

log = logging.getLogger(__name__)

READ_LIMIT = 64 * 1024
MOST_IN_FLIGHT = 8
LONGEST_RPC = 30.0
"""Bytes of a frame, claims at a time on one connection, seconds that a daemon may ask us to try."""


async def daemon_socket(scope: Scope, receive: Receive, send: Send) -> None:
    """`/api/daemon/ws`: bearer header, no origin, no cookie. Refused with 401, 403, 404 or 503 before the upgrade."""
    await receive()
    credential = header(scope, protocol.HEADER_AUTHORIZATION)
    try:
        if not conf.DAEMON_SOCKET:
            raise UnavailableError("the socket is switched off")
        caller, runtime_ids = await POOL.call(lambda: _admit(credential, scope["query_string"]))
    except Exception as error:
        await refuse(scope, send, error)
        return
    await _DaemonConnection(credential, caller, runtime_ids, receive, send).run()


def _admit(credential: str, query: bytes) -> tuple[Caller, frozenset[UUID]]:
    """The caller and the runtimes of a connection; one runtime that is unknown or out of reach refuses the whole."""
    caller = auth.authenticate(credential or None)
    access.require_person(caller)
    given = parse_qs(query.decode("latin-1"))
    texts = [text for value in given.get("runtime_ids", []) for text in value.split(",")] + given.get("runtime_id", [])
    texts = [text.strip() for text in texts if text.strip()]
    return caller, access.runtimes_of(caller, [ident_of(text) for text in texts])


class _DaemonConnection(Connection):
    """One daemon's connection, bound to its runtimes for as long as it lives."""

    def __init__(
        self, credential: str, caller: Caller, runtime_ids: frozenset[UUID], receive: Receive, send: Send
    ) -> None:
        groups = [events.user_group(caller.user.pk), *(events.runtime_group(i) for i in sorted(runtime_ids))]
        super().__init__(receive, send, groups)
        self._credential, self._runtime_ids = credential, runtime_ids
        self._beating: set[UUID] = set()
        self._in_flight = 0

    def told(self, message: dict[str, Any]) -> None:
        """A hint for this daemon."""
        said = message.get("frame")
        if message.get("type") == "daemon.hint" and isinstance(said, dict):
            payload = said.get("payload") or {}
            key = (said.get("type"), payload.get("runtime_id"), payload.get("workspace_id"), payload.get("kind"))
            self.outbox.hint(key, frame(str(said.get("type")), payload))

    def heard(self, data: bytes) -> None:
        """A frame of the daemon; what cannot be read and what is not known is ignored."""
        if len(data) > READ_LIMIT:
            self.outbox.close(TOO_BIG)
            return
        try:
            said = read_frame(data)
        except InvalidError:
            return
        if said.type == protocol.FRAME_HEARTBEAT:
            self._hear_heartbeat(said.payload)
        elif said.type == protocol.FRAME_RPC_REQUEST:
            self._hear_rpc(said.payload)

    # ------------------------------------------------------------------------------------------------- heartbeats

    def _hear_heartbeat(self, payload: dict[str, Any]) -> None:
        try:
            beat = convert(payload, Heartbeat)
        except InvalidError:
            return
        runtime_id = ident_of(beat.runtime_id)
        # One at a time for each runtime: a daemon that floods loses the surplus, as it would by its own queue.
        if runtime_id in self._runtime_ids and runtime_id not in self._beating:
            self._beating.add(runtime_id)
            self.spawn(self._answer_heartbeat(runtime_id, beat))

    async def _answer_heartbeat(self, runtime_id: UUID, beat: Heartbeat) -> None:
        answer: dict[str, Any] | None = None
        try:
            answer = await POOL.call(lambda: heartbeat.heartbeat(self._caller(), beat))
        except RuntimeNotFoundError:
            answer = {"status": "runtime_gone", "runtime_id": str(runtime_id), "runtime_gone": True}
        except (AuthError, ForbiddenError):
            self.outbox.close(NOT_AUTHORISED)
        except QueueError as error:
            log.debug("no ack: %s", error.code)
        except Exception as error:
            # No ack: the daemon takes its heartbeat to HTTP.
            log.warning("a heartbeat failed: %s", type(error).__name__)
        if answer is None:
            self._beating.discard(runtime_id)
            return
        answer["server_capabilities"] = [protocol.CAPABILITY_RPC]
        self.outbox.answer(frame(protocol.FRAME_HEARTBEAT_ACK, answer), lambda: self._beating.discard(runtime_id))

    def _caller(self) -> Caller:
        # Asked again for every call: a revoked token must not live on in an open socket.
        caller = auth.authenticate(self._credential)
        access.require_person(caller)
        return caller

    # ------------------------------------------------------------------------------------------------------- RPCs

    def _hear_rpc(self, payload: dict[str, Any]) -> None:
        request_id = payload.get("request_id")
        if not isinstance(request_id, str) or not request_id:
            return
        try:
            request = convert(payload, RpcRequest)
        except InvalidError as error:
            self._answer_error(request_id, error)
            return
        if request.method != protocol.RPC_TASKS_CLAIM:
            self._answer_error(request_id, NotFoundError("unknown method", code="unknown_method"))
        elif self._in_flight >= MOST_IN_FLIGHT:
            body = {"error": f"at most {MOST_IN_FLIGHT} calls at a time", "code": "too_many_in_flight"}
            self.outbox.answer(rpc_response(request_id, 429, body))
        else:
            self._in_flight += 1
            self.spawn(self._claim(request))

    async def _claim(self, request: RpcRequest) -> None:
        deadline = time.monotonic() + _limit(request.timeout_ms)
        try:
            work = self._claiming(request, deadline)
            tasks = await POOL.call(work, within=deadline - time.monotonic())
        except Exception as error:
            self._answer_error(request.request_id, error, self._landed)
            if isinstance(error, AuthError):
                self.outbox.close(NOT_AUTHORISED)
            return
        self.outbox.answer(rpc_response(request.request_id, 200, {"tasks": tasks}), self._landed)

    def _claiming(self, request: RpcRequest, deadline: float) -> Callable[[], list[dict[str, Any]]]:
        def work() -> list[dict[str, Any]]:
            body = convert(request.body, Claim)
            return claim.claim(
                self._caller(),
                daemon_id=body.daemon_id,
                runtime_ids=body.runtime_ids,
                max_tasks=body.max_tasks,
                timeout_ms=max(0, int((deadline - time.monotonic()) * 1000)),
                door="ws",
            )

        return work

    def _landed(self) -> None:
        self._in_flight -= 1

    def _answer_error(self, request_id: str, error: Exception, leaving: Callable[[], None] | None = None) -> None:
        if isinstance(error, QueueError):
            status, body = answer_to(error)
        elif isinstance(error, OperationalError | InterfaceError):
            status, body = 503, {"error": "temporarily unavailable", "code": "unavailable"}
        else:
            log.error("an RPC failed", exc_info=error)
            status, body = 500, {"error": "internal error", "code": "internal"}
        self.outbox.answer(rpc_response(request_id, status, body), leaving)


def _limit(timeout_ms: int) -> float:
    given = timeout_ms / 1000 if timeout_ms > 0 else protocol.CLAIM_TIMEOUT
    return min(given, LONGEST_RPC)
