"""JSON-RPC, one object a line over the pipes of an agent: calls both ways, answers by id, notifications in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from daemon_client.agents.base import Json
from daemon_client.process import ManagedProcess

METHOD_NOT_FOUND: Final = -32601


class RpcError(Exception):
    """The other side answered with an error. `code` is its JSON-RPC code, the text what it said."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


class PeerGone(Exception):
    """The other side ended or stopped reading before it answered; whether it acted on the call is not known."""


Notified = Callable[[str, Json], None]


class Answering(Protocol):
    def __call__(self, method: str, params: Json, /) -> Awaitable[Json]: ...


class Peer:
    """One conversation. `answer` returns the result of a request of the agent, or raises RpcError.

    A request is always answered: an agent that asks waits without a limit.
    """

    def __init__(self, process: ManagedProcess, notified: Notified, answer: Answering) -> None:
        self._process, self._notified, self._answer = process, notified, answer
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next = 1
        self._gone = False

    async def call(self, method: str, params: Json, timeout: float | None = None) -> Json:
        """The result of a call. Raises RpcError, PeerGone, or TimeoutError after `timeout` seconds."""
        number, self._next = self._next, self._next + 1
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._send({"id": number, "method": method, "params": params})
                result = await future
        finally:
            del self._waiting[number]
        return result if isinstance(result, dict) else {}

    async def notify(self, method: str, params: Json) -> None:
        await self._send({"method": method, "params": params})

    async def _send(self, message: Json) -> None:
        if self._gone:
            raise PeerGone("the agent has ended")
        try:
            await self._process.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        except OSError as error:
            raise PeerGone(f"the agent no longer reads its input: {error}") from error

    async def read(self) -> None:
        """Serve what the agent writes until its output ends; then every open call fails with PeerGone."""
        try:
            async for line in self._process.lines():
                with contextlib.suppress(ValueError, RecursionError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        await self._take(message)
        finally:
            self._gone = True
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(PeerGone("the agent ended before it answered"))

    async def _take(self, message: Json) -> None:
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        if not isinstance(method, str):
            self._settle(message)
        elif "id" in message:
            # An agent that no longer reads its answers shows it elsewhere: its own calls end.
            with contextlib.suppress(PeerGone):
                await self._send({"id": message["id"], **await self._outcome(method, params)})
        else:
            self._notified(method, params)

    async def _outcome(self, method: str, params: Json) -> Json:
        try:
            return {"result": await self._answer(method, params)}
        except RpcError as error:
            return {"error": {"code": error.code, "message": str(error)}}

    def _settle(self, message: Json) -> None:
        number = message.get("id")
        future = self._waiting.get(number) if isinstance(number, int) else None
        if future is None or future.done():
            return
        error = message.get("error")
        if error is None:
            future.set_result(message.get("result"))
        else:
            future.set_exception(_as_error(error))


def _as_error(error: object) -> RpcError:
    if not isinstance(error, dict):
        return RpcError(0, str(error))
    code, data = error.get("code"), error.get("data")
    text = str(error.get("message") or "the agent refused the call")
    if data:
        text += f" {data if isinstance(data, str) else json.dumps(data)[:2000]}"
    return RpcError(code if isinstance(code, int) else 0, text)
