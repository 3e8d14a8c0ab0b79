"""Request and answer over the control socket, matched by id; many may be in flight."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass

from daemon_client import protocol
from daemon_client.clock import Clock
from daemon_client.errors import RpcRejected, RpcUnavailable, RpcUncertain
from daemon_client.protocol import Json
from daemon_client.transport.ws import ControlSocket, Link, OutboundFrame, encode


@dataclass
class _Pending:
    frame: OutboundFrame
    link: Link
    answer: asyncio.Future[Json]


class RpcClient:
    """Calls to the server over the socket, for as long as the current connection negotiated them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._socket: ControlSocket | None = None
        self._pending: dict[str, _Pending] = {}

    def bind(self, socket: ControlSocket) -> None:
        self._socket = socket

    async def call(self, method: str, body: Json, timeout: float) -> Json:
        """The body of a successful answer.

        RpcUnavailable: surely not sent, another way may be tried. RpcRejected: the server said no, nothing was done.
        RpcUncertain: it may have been done; `timeout` (plus a grace for the way back) ran out or the socket died.
        """
        link = self._socket.negotiated(protocol.CAPABILITY_RPC) if self._socket else None
        if link is None:
            raise RpcUnavailable("no connection that negotiated calls")
        request_id = str(uuid.uuid4())
        limit_ms = round(self._clock.real_seconds(self._clock.io_seconds(timeout)) * 1000)
        payload: Json = {"request_id": request_id, "method": method, "body": body, "timeout_ms": limit_ms}
        frame = OutboundFrame(lambda: encode(protocol.FRAME_RPC_REQUEST, payload))
        pending = _Pending(frame, link, asyncio.get_running_loop().create_future())
        self._pending[request_id] = pending
        try:
            if not link.offer(frame):
                raise RpcUnavailable("the socket's queue is full")
            return _body(await self._answer(pending, timeout))
        finally:
            frame.cancel()
            del self._pending[request_id]

    async def _answer(self, pending: _Pending, timeout: float) -> Json:
        limit = self._clock.io_seconds(timeout) + self._clock.io_seconds(protocol.RPC_GRACE)
        try:
            async with self._clock.timeout(limit):
                return await pending.answer
        except TimeoutError:
            raise _no_answer(pending.frame, f"no answer within {limit:g} s") from None

    def on_response(self, payload: Json) -> None:
        """An answer arrived; one that nobody waits for any more is dropped."""
        request_id = payload.get("request_id")
        pending = self._pending.get(request_id) if isinstance(request_id, str) else None
        if pending and not pending.answer.done():
            pending.answer.set_result(payload)

    def fail_pending(self) -> None:
        """The connection is gone (and its socket closed already): end every call that waits on it."""
        for pending in self._pending.values():
            if pending.link.closed and not pending.answer.done():
                pending.answer.set_exception(_no_answer(pending.frame, "the connection was lost"))


def _no_answer(frame: OutboundFrame, text: str) -> RpcUnavailable | RpcUncertain:
    return RpcUnavailable(f"not sent: {text}") if frame.cancel() else RpcUncertain(text)


def _body(answer: Json) -> Json:
    status, body = answer.get("status"), answer.get("body")
    if not isinstance(status, int) or not 200 <= status < 300:
        error = answer.get("error")
        raise RpcRejected(status if isinstance(status, int) else 0, error if isinstance(error, str) else str(body))
    if not isinstance(body, dict):
        raise RpcRejected(status, "the answer has no readable body")
    return body
