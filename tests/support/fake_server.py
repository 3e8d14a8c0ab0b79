"""A server that speaks the daemon protocol over real sockets, keeps its tasks in memory, and misbehaves on request."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from daemon_client import protocol

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TOKEN = "mul_" + "a" * 40
BODY = web.RequestKey("body", dict)


@dataclass
class Seen:
    """One call that reached the server, over HTTP or as an RPC (`method` is then `RPC`)."""

    method: str
    path: str
    body: Json
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def verb(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass
class FakeTask:
    """A row of the queue. `tokens` are those of all deliveries, the last one counts."""

    id: str
    runtime_id: str
    fields: Json
    status: str = protocol.QUEUED
    tokens: list[str] = field(default_factory=list)
    started_with: list[str] = field(default_factory=list)
    result: Json = field(default_factory=dict)
    messages: dict[int, Json] = field(default_factory=dict)
    usage: list[Json] = field(default_factory=list)
    session: Json = field(default_factory=dict)
    acks: list[Json] = field(default_factory=list)
    auth_token: str = ""
    gone: bool = False

    @property
    def token(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    @property
    def ended(self) -> bool:
        return self.status in protocol.TERMINAL_STATUSES


@dataclass
class Fault:
    """What happens to matching requests: an answer instead of the real one, a cut connection, or a wait.

    `drop` cuts before the server acts, `drop_after` when it has acted; `hold` waits for the event first.
    """

    pattern: str
    times: int = 1
    status: int = 0
    body: Any = None
    drop: bool = False
    drop_after: bool = False
    hold: asyncio.Event | None = None
    hits: int = 0

    def matches(self, request: web.Request) -> bool:
        return self.hits < self.times and re.search(self.pattern, f"{request.method} {request.path}") is not None


class FakeServer:
    """`async with FakeServer() as server`. One workspace and no limits; a claim token unless `old` (other servers)."""

    def __init__(self, *, old: bool = False, batch: bool = True, capabilities: tuple[str, ...] = ("rpc-v1",)) -> None:
        self.old, self.batch, self.capabilities = old, batch, capabilities
        self.token = TOKEN
        self.workspaces: list[Json] = [{"id": str(uuid.uuid4()), "name": "Home"}]
        self.profiles: list[Json] = []
        self.repos: list[Json] = []
        self.runtimes: dict[tuple[str, str, str], Json] = {}
        self.tasks: dict[str, FakeTask] = {}
        self.seen: list[Seen] = []
        self.faults: list[Fault] = []
        self.sockets: list[web.WebSocketResponse] = []
        self.accept_sockets = True
        self.unreachable = False
        self.ack_heartbeats = True
        self.ack_extra: Json = {}
        self.slow_heartbeats: dict[str, asyncio.Event] = {}
        # What a claim over the socket leads to: answer, silent and cut (claimed, no answer), reject, hold (no claim).
        self.rpc_mode = "answer"
        # Called the moment a task runs, like somebody who follows its events.
        self.on_start: Callable[[FakeTask], None] = lambda _: None
        self.on_recover: Callable[[], None] = lambda: None
        self._runner: web.AppRunner | None = None

    # -- life --

    async def __aenter__(self) -> FakeServer:
        app = web.Application(middlewares=[self._middleware], client_max_size=1 << 28)
        app.add_routes(self._routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner
        for fault in self.faults:
            if fault.hold:
                fault.hold.set()
        await self.cut_sockets()
        await self._runner.cleanup()

    def _routes(self) -> list[web.RouteDef]:
        runtime, task = "/api/daemon/runtimes/{runtime}", "/api/daemon/tasks/{task}"
        reports = ("progress", "messages", "session", "usage", "complete", "fail", "cancel-ack")
        return [
            web.get("/api/me", self._me),
            web.get("/api/workspaces", self._workspaces),
            web.post(protocol.ROUTE_TOKEN_RENEW, self._renew),
            web.get(protocol.ROUTE_WORKSPACES, self._workspaces),
            web.post(protocol.ROUTE_REGISTER, self._register),
            web.post(protocol.ROUTE_DEREGISTER, self._fine),
            web.post(protocol.ROUTE_HEARTBEAT, self._heartbeat),
            web.get("/api/daemon/workspaces/{workspace}/runtime-profiles", self._profiles),
            web.get("/api/daemon/workspaces/{workspace}/repos", self._repos),
            *([web.post(protocol.ROUTE_CLAIM, self._claim)] if self.batch else []),
            web.post(runtime + "/tasks/claim", self._claim_one),
            web.post(runtime + "/recover-orphans", self._recover),
            web.post(runtime + "/{kind:models|update|local-skills}/{request}/result", self._fine),
            web.post(runtime + "/tasks/{task}/prepare-lease", self._active_only),
            web.post(task + "/wait-local-directory", self._active_only),
            web.post(task + "/start", self._start),
            web.get(task + "/status", self._status),
            *[web.post(f"{task}/{{verb:{verb}}}", self._report) for verb in reports],
            web.get(protocol.ROUTE_WS, self._socket),
        ]

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.unreachable:
            return _cut(request)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"error": "invalid token"}, status=401)
        text = await request.text() if request.can_read_body else ""
        request[BODY] = json.loads(text) if text else {}
        self.seen.append(Seen(request.method, request.path, request[BODY], dict(request.query), dict(request.headers)))
        fault = next((each for each in self.faults if each.matches(request)), None)
        if fault is None:
            return await handler(request)
        return await self._misbehave(fault, request, handler)

    async def _misbehave(self, fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
        fault.hits += 1
        if fault.hold:
            await fault.hold.wait()
        if fault.drop:
            return _cut(request)
        if fault.status:
            return _answer(fault.status, fault.body)
        answer = await handler(request)
        return _cut(request) if fault.drop_after else answer

    # -- for tests --

    def fault(self, pattern: str, **options: Any) -> Fault:
        """Misbehave for requests whose `METHOD /path` matches `pattern`."""
        self.faults.append(Fault(pattern, **options))
        return self.faults[-1]

    @property
    def workspace_id(self) -> str:
        return str(self.workspaces[0]["id"])

    def runtime_ids(self) -> list[str]:
        return [runtime["id"] for runtime in self.runtimes.values()]

    def add_task(self, runtime_id: str | None = None, **fields: Any) -> FakeTask:
        """Queue a task; nobody is told (see `hint`)."""
        agent = str(uuid.uuid4())
        task = FakeTask(
            str(uuid.uuid4()),
            runtime_id or self.runtime_ids()[0],
            {
                "agent_id": agent,
                "workspace_id": self.workspace_id,
                "issue_id": str(uuid.uuid4()),
                "agent": {"id": agent, "name": "Builder", "instructions": ""},
                "attempt": 1,
            }
            | fields,
        )
        self.tasks[task.id] = task
        return task

    def redeliver(self, task: FakeTask) -> None:
        """Treat the delivery as lost: the next claim gets the task again, under a new token."""
        task.status = protocol.QUEUED

    def calls(self, verb: str, method: str = "") -> list[Seen]:
        return [each for each in self.seen if each.verb == verb and (not method or each.method == method)]

    def claims(self) -> list[Seen]:
        return [each for each in self.seen if each.verb in ("claim", protocol.RPC_TASKS_CLAIM)]

    def of(self, task: FakeTask) -> list[Seen]:
        return [each for each in self.seen if task.id in each.path]

    async def push(self, kind: str, payload: Json) -> None:
        for socket in list(self.sockets):
            await socket.send_json({"type": kind, "payload": payload})

    async def hint(self) -> None:
        await self.push(protocol.FRAME_TASK_AVAILABLE, {"runtime_id": ""})

    async def cut_sockets(self) -> None:
        for socket in list(self.sockets):
            _abort(socket)
        self.sockets.clear()

    # -- account, registration, liveness --

    async def _me(self, request: web.Request) -> web.Response:
        return web.json_response({"name": "Ada", "email": "ada@example.org"})

    async def _renew(self, request: web.Request) -> web.Response:
        return web.json_response({"expires_at": "", "renewed": False})

    async def _workspaces(self, request: web.Request) -> web.Response:
        return web.json_response(self.workspaces)

    async def _fine(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _profiles(self, request: web.Request) -> web.Response:
        return web.json_response({"workspace_id": self.workspace_id, "runtime_profiles": self.profiles})

    async def _repos(self, request: web.Request) -> web.Response:
        return web.json_response({"repos": self.repos, "repos_version": "1", "settings": {}})

    async def _register(self, request: web.Request) -> web.Response:
        body = request[BODY]
        answer = []
        for entry in body["runtimes"]:
            key = (body["workspace_id"], entry["type"], entry.get("profile_id", ""))
            new = {"id": str(uuid.uuid4()), "name": entry["name"], "provider": entry["type"], "status": "online"}
            runtime = self.runtimes.setdefault(key, new | {"profile_id": entry.get("profile_id")})
            answer.append(runtime)
        return web.json_response({"runtimes": answer, "repos": self.repos, "repos_version": "1", "settings": {}})

    async def _heartbeat(self, request: web.Request) -> web.Response:
        if hold := self.slow_heartbeats.get(request[BODY]["runtime_id"]):
            await hold.wait()
        if request[BODY]["runtime_id"] not in self.runtime_ids():
            return _answer(404, {"error": "runtime not found"})
        return web.json_response({"status": "ok"} | self.ack_extra)

    async def _recover(self, request: web.Request) -> web.Response:
        self.on_recover()
        orphans = [t for t in self.tasks.values() if t.runtime_id == request.match_info["runtime"]]
        for task in orphans:
            if task.status in protocol.ACTIVE_STATUSES:
                task.status, task.result = protocol.FAILED, {"failure_reason": protocol.REASON_RUNTIME_RECOVERY}
        return web.json_response({"orphaned": len(orphans), "retried": 0})

    # -- claim --

    def deliver(self, runtime_ids: list[str], most: int) -> list[Json]:
        answer = []
        for task in self.tasks.values():
            if len(answer) < most and task.status == protocol.QUEUED and task.runtime_id in runtime_ids:
                task.status = protocol.DISPATCHED
                task.tokens.append("" if self.old else str(uuid.uuid4()))
                task.auth_token = "mat_" + uuid.uuid4().hex + "0" * 8
                payload = {"id": task.id, "runtime_id": task.runtime_id, "auth_token": task.auth_token}
                token = {} if self.old else {"claim_token": task.token}
                answer.append(payload | token | task.fields)
        return answer

    async def _claim(self, request: web.Request) -> web.Response:
        body = request[BODY]
        return web.json_response({"tasks": self.deliver(body["runtime_ids"], body["max_tasks"])})

    async def _claim_one(self, request: web.Request) -> web.Response:
        tasks = self.deliver([request.match_info["runtime"]], 1)
        return web.json_response({"task": tasks[0] if tasks else None})

    # -- one task --

    def _refusal(self, request: web.Request, code: str, *, open_only: bool) -> tuple[FakeTask, web.Response | None]:
        task = self.tasks.get(request.match_info["task"])
        if task is None or task.gone:
            return FakeTask("", "", {}), _answer(404, {"error": "task not found"})
        token = request[BODY].get("claim_token") or request.query.get("claim_token")
        if token and token != task.token:
            return task, _answer(409, {"error": "superseded by another delivery", "code": code})
        if open_only and task.ended:
            return task, _answer(409, {"error": "the task has ended", "code": protocol.CODE_TASK_ENDED})
        return task, None

    async def _active_only(self, request: web.Request) -> web.Response:
        _, refused = self._refusal(request, protocol.CODE_STALE_CLAIM, open_only=True)
        return refused or web.json_response({})

    async def _start(self, request: web.Request) -> web.Response:
        task, refused = self._refusal(request, protocol.CODE_START_CLAIM_REJECTED, open_only=True)
        if refused:
            return refused
        if task.status == protocol.RUNNING and task.started_with[-1:] != [request[BODY].get("claim_token")]:
            return _answer(400, {"error": "task is not startable"})
        if task.status != protocol.RUNNING:
            task.started_with.append(request[BODY].get("claim_token", ""))
        task.status = protocol.RUNNING
        self.on_start(task)
        return web.json_response({})

    async def _status(self, request: web.Request) -> web.Response:
        task, refused = self._refusal(request, protocol.CODE_STALE_CLAIM, open_only=False)
        return refused or web.json_response({"status": task.status})

    async def _report(self, request: web.Request) -> web.Response:
        task, refused = self._refusal(request, protocol.CODE_STALE_CLAIM, open_only=False)
        if refused:
            return refused
        verb, body = request.match_info["verb"], request[BODY]
        if verb == "messages":
            task.messages |= {message["seq"]: message for message in body["messages"]}
        elif verb == "usage":
            task.usage = body["usage"]
        elif verb == "session":
            task.session = body
        elif verb == "cancel-ack":
            task.acks.append(body)
        elif verb in ("complete", "fail") and not task.ended:
            task.status, task.result = protocol.COMPLETED if verb == "complete" else protocol.FAILED, body
        return web.json_response({})

    # -- socket --

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        if not self.accept_sockets:
            return _answer(503, {"error": "no sockets here"})
        socket = web.WebSocketResponse(max_msg_size=1 << 20)
        await socket.prepare(request)
        self.sockets.append(socket)
        try:
            async for message in socket:
                if message.type == WSMsgType.TEXT:
                    await self._frame(socket, json.loads(message.data))
        finally:
            if socket in self.sockets:
                self.sockets.remove(socket)
        return socket

    async def _frame(self, socket: web.WebSocketResponse, frame: Json) -> None:
        payload = frame["payload"]
        self.seen.append(Seen("WS", frame["type"], payload))
        if frame["type"] == protocol.FRAME_HEARTBEAT and self.ack_heartbeats:
            ack = {"runtime_id": payload["runtime_id"], "server_capabilities": list(self.capabilities)}
            await socket.send_json({"type": protocol.FRAME_HEARTBEAT_ACK, "payload": ack | self.ack_extra})
        elif frame["type"] == protocol.FRAME_RPC_REQUEST:
            await self._rpc(socket, payload)

    async def _rpc(self, socket: web.WebSocketResponse, payload: Json) -> None:
        self.seen.append(Seen("RPC", payload["method"], payload["body"]))
        if self.rpc_mode == "hold":
            return
        answer: Json = {"request_id": payload["request_id"], "status": 200}
        if self.rpc_mode == "reject":
            answer |= {"status": 503, "error": "not now"}
        else:
            answer["body"] = {"tasks": self.deliver(payload["body"]["runtime_ids"], payload["body"]["max_tasks"])}
        if self.rpc_mode == "cut":
            _abort(socket)
        elif self.rpc_mode != "silent":
            await socket.send_json({"type": protocol.FRAME_RPC_RESPONSE, "payload": answer})


def _answer(status: int, body: Any) -> web.Response:
    if isinstance(body, str):
        return web.Response(status=status, text=body)
    return web.json_response(body if body is not None else {"error": "broken on request"}, status=status)


def _cut(request: web.Request) -> web.Response:
    if request.transport:
        request.transport.abort()
    return web.Response(status=500)


def _abort(socket: web.WebSocketResponse) -> None:
    request = socket._req
    if request is not None and request.transport:
        request.transport.abort()
