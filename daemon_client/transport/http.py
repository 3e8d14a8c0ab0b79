"""The control plane over HTTP: one method, one request, no retry. Retries are `retry.py`'s, decisions the engine's."""

from __future__ import annotations

import io
import json
import platform
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from daemon_client import __version__, protocol
from daemon_client.clock import Clock
from daemon_client.errors import DecodeError, HttpError, TransportError
from daemon_client.protocol import ClaimedTask, Json

_OS_NAMES = {"Darwin": "macos", "Windows": "windows", "Linux": "linux"}


def client_headers(token: str, *, client: str = protocol.PLATFORM_DAEMON, version: str = __version__) -> dict[str, str]:
    """Identity sent with every request and with the handshake of the socket."""
    headers = {
        protocol.HEADER_CLIENT_PLATFORM: client,
        protocol.HEADER_CLIENT_OS: _OS_NAMES.get(platform.system(), platform.system().lower()),
        protocol.HEADER_CLIENT_CAPABILITIES: ",".join(protocol.CLIENT_CAPABILITIES),
    }
    if token:
        headers[protocol.HEADER_AUTHORIZATION] = f"Bearer {token}"
    return headers | ({protocol.HEADER_CLIENT_VERSION: version} if version else {})


def is_loopback(url: str) -> bool:
    """True for a server on this machine: no proxy of the environment could reach it."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def fill(route: str, **ids: str) -> str:
    """A route template with ids that cannot break out of their path segment."""
    return route.format(**{name: quote(value, safe="") for name, value in ids.items()})


def error_code(body: str) -> str:
    try:
        value = json.loads(body)
    except ValueError:
        return ""
    code = value.get("code") if isinstance(value, dict) else None
    return code if isinstance(code, str) else ""


class _Pool:
    """One aiohttp session and the number of requests that use it, so that it can be retired without cutting them."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session, self.users, self.retired = session, 0, False


class HttpClient:
    """Sends one request to one server. Raises HttpError from 400 up, TransportError without an answer."""

    def __init__(self, base_url: str, token: str, clock: Clock, *, version: str = __version__) -> None:
        self.base_url, self._token, self._clock = base_url.rstrip("/"), token, clock
        self._headers = client_headers(token, version=version)
        self._pool: _Pool | None = None

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float = protocol.HTTP_TIMEOUT,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Status, body and headers of an answer below 400. `timeout` covers the whole request, body included."""
        pool = self._current()
        pool.users += 1
        try:
            return await self._send(pool.session, method, path, body, timeout, dict(headers or {}), dict(query or {}))
        finally:
            pool.users -= 1
            if pool.retired and not pool.users:
                await pool.session.close()

    async def _send(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout: float,
        headers: dict[str, str],
        query: dict[str, str],
    ) -> tuple[int, bytes, Mapping[str, str]]:
        if method == "POST":
            headers["Content-Type"] = "application/json"
        # As a stream, because a whole result written at once would hold up the loop, and aiohttp says so.
        data = io.BytesIO(json.dumps(body or {}).encode()) if method == "POST" else None
        try:
            async with (
                self._clock.timeout(self._clock.io_seconds(timeout)),
                session.request(
                    method, self.base_url + path, data=data, headers=headers, params=query, allow_redirects=False
                ) as answer,
            ):
                content = await answer.read()
        except TimeoutError as error:
            raise TransportError(f"{method} {path} got no answer within {timeout:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise TransportError(f"{method} {path} could not connect: {error}", unsent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise TransportError(f"{method} {path} broke off: {error or type(error).__name__}") from error
        _refuse_errors(method, path, answer.status, content)
        return answer.status, content, answer.headers

    async def json(self, method: str, path: str, body: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """The decoded JSON of the answer; an answer that is none, empty included, is a DecodeError."""
        _, content, _ = await self.request(method, path, body, **options)
        return decode(method, path, content)

    def _current(self) -> _Pool:
        if self._pool is None:
            # Limits are ours (product clock); aiohttp's own would count in real seconds behind the scale's back.
            session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                connector=aiohttp.TCPConnector(limit=0),
                trust_env=not is_loopback(self.base_url),
            )
            self._pool = _Pool(session)
        return self._pool

    async def drop_connections(self) -> None:
        """Use fresh connections from now on: kept ones may point into a network that is gone."""
        pool, self._pool = self._pool, None
        if pool:
            pool.retired = True
            if not pool.users:
                await pool.session.close()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool:
            await pool.session.close()


def _refuse_errors(method: str, path: str, status: int, content: bytes) -> None:
    # A followed redirect would turn a POST into a GET and lose its body, so one is an error here.
    if status < 300 or status == 304:
        return
    text = content[: protocol.ERROR_BODY_LIMIT].decode("utf-8", "replace").strip()
    raise HttpError(method, path, status, text, error_code(text))


def decode(method: str, path: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise DecodeError(f"{method} {path} answered something that is not JSON") from error


def _object(value: Any, what: str) -> Json:
    if not isinstance(value, dict):
        raise DecodeError(f"{what} answered {type(value).__name__} where an object belongs")
    return value


def _list(value: Any, what: str) -> list[Json]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise DecodeError(f"{what} answered {type(value).__name__} where a list belongs")
    return [item for item in value if isinstance(item, dict)]


class ServerApi:
    """The daemon's calls. Every call about a task carries the claim token of its delivery when there is one."""

    def __init__(self, http: HttpClient) -> None:
        self.http = http

    # -- account and workspaces --

    async def renew_token(self) -> Json:
        timeout = protocol.TOKEN_RENEWAL_TIMEOUT
        return _object(await self.http.json("POST", protocol.ROUTE_TOKEN_RENEW, timeout=timeout), "token renewal")

    async def workspaces(self, etag: str = "") -> tuple[list[Json] | None, str]:
        """The workspaces and their ETag; None in place of the list when the one behind `etag` still holds."""
        headers = {"If-None-Match": etag} if etag else {}
        path = protocol.ROUTE_WORKSPACES
        status, content, answer = await self.http.request(
            "GET", path, headers=headers, timeout=protocol.WORKSPACES_TIMEOUT
        )
        if status == 304:
            return None, etag
        return _list(decode("GET", path, content), "workspace list"), answer.get("ETag", "")

    async def user_workspaces(self) -> list[Json]:
        path = protocol.ROUTE_USER_WORKSPACES
        return _list(await self.http.json("GET", path, timeout=protocol.WORKSPACES_TIMEOUT), "workspace list")

    async def me(self) -> Json:
        return _object(await self.http.json("GET", protocol.ROUTE_ME), "account")

    async def profiles(self, workspace_id: str) -> list[Json]:
        path = fill(protocol.ROUTE_PROFILES, workspace_id=workspace_id)
        return _list(_object(await self.http.json("GET", path), "profiles").get("runtime_profiles"), "profiles")

    async def repos(self, workspace_id: str) -> Json:
        return _object(await self.http.json("GET", fill(protocol.ROUTE_REPOS, workspace_id=workspace_id)), "repos")

    async def register(self, body: Json) -> Json:
        return _object(await self.http.json("POST", protocol.ROUTE_REGISTER, body), "registration")

    async def deregister(self, runtime_ids: list[str]) -> None:
        body = {"runtime_ids": runtime_ids}
        await self.http.request("POST", protocol.ROUTE_DEREGISTER, body, timeout=protocol.DEREGISTER_TIMEOUT)

    async def heartbeat(self, body: Json, *, timeout: float = protocol.HTTP_TIMEOUT) -> Json:
        return _object(await self.http.json("POST", protocol.ROUTE_HEARTBEAT, body, timeout=timeout), "heartbeat")

    async def recover_orphans(self, runtime_id: str) -> None:
        await self.http.request("POST", fill(protocol.ROUTE_RECOVER_ORPHANS, runtime_id=runtime_id))

    # -- claiming --

    async def claim(self, body: Json) -> list[ClaimedTask]:
        answer = await self.http.json("POST", protocol.ROUTE_CLAIM, body, timeout=protocol.CLAIM_TIMEOUT)
        return claimed_tasks(answer)

    async def claim_runtime(self, runtime_id: str) -> ClaimedTask | None:
        path = fill(protocol.ROUTE_RUNTIME_CLAIM, runtime_id=runtime_id)
        task = _object(await self.http.json("POST", path), "claim").get("task")
        return ClaimedTask.decode(task) if isinstance(task, dict) else None

    # -- one task --

    async def _task(self, route: str, task: ClaimedTask, body: Json | None = None, **options: Any) -> None:
        ids = {"task_id": task.id} | ({"runtime_id": task.runtime_id} if "{runtime_id}" in route else {})
        token = {"claim_token": task.claim_token} if task.claim_token else {}
        await self.http.request("POST", fill(route, **ids), (body or {}) | token, **options)

    async def prepare_lease(self, task: ClaimedTask) -> None:
        await self._task(protocol.ROUTE_PREPARE_LEASE, task, timeout=protocol.PREPARE_LEASE_TIMEOUT)

    async def wait_local_directory(self, task: ClaimedTask, reason: str) -> None:
        await self._task(protocol.ROUTE_TASK_WAIT, task, {"reason": reason})

    async def start(self, task: ClaimedTask) -> None:
        await self._task(protocol.ROUTE_TASK_START, task)

    async def status(self, task: ClaimedTask) -> str:
        path = fill(protocol.ROUTE_TASK_STATUS, task_id=task.id)
        query = {"claim_token": task.claim_token} if task.claim_token else {}
        status = _object(await self.http.json("GET", path, query=query), "task status").get("status")
        return status if isinstance(status, str) else ""

    async def progress(self, task: ClaimedTask, summary: str, step: int, total: int) -> None:
        body: Json = {"summary": summary, "step": step, "total": total}
        await self._task(protocol.ROUTE_TASK_PROGRESS, task, body, timeout=protocol.MESSAGE_TIMEOUT)

    async def messages(self, task: ClaimedTask, messages: list[Json]) -> None:
        body: Json = {"messages": messages}
        await self._task(protocol.ROUTE_TASK_MESSAGES, task, body, timeout=protocol.MESSAGE_TIMEOUT)

    async def session(self, task: ClaimedTask, body: Json) -> None:
        await self._task(protocol.ROUTE_TASK_SESSION, task, body, timeout=protocol.SESSION_TIMEOUT)

    async def usage(self, task: ClaimedTask, usage: list[Json]) -> None:
        await self._task(protocol.ROUTE_TASK_USAGE, task, {"usage": usage})

    async def complete(self, task: ClaimedTask, body: Json) -> None:
        await self._task(protocol.ROUTE_TASK_COMPLETE, task, body)

    async def fail(self, task: ClaimedTask, body: Json) -> None:
        await self._task(protocol.ROUTE_TASK_FAIL, task, body)

    async def cancel_ack(self, task: ClaimedTask, body: Json) -> None:
        await self._task(protocol.ROUTE_TASK_CANCEL_ACK, task, body)

    # -- answers to what a heartbeat asked for --

    async def requested_result(self, route: str, runtime_id: str, request_id: str, body: Json) -> None:
        await self.http.request("POST", fill(route, runtime_id=runtime_id, request_id=request_id), body)


def claimed_tasks(answer: Any) -> list[ClaimedTask]:
    """The tasks of a batch claim's answer, over either transport."""
    return [ClaimedTask.decode(item) for item in _list(_object(answer, "claim").get("tasks"), "claim")]
