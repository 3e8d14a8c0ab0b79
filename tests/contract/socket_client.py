"""A daemon's end of the wire, written from the protocol alone: none of the product's own client code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import psycopg
from websockets.sync.client import ClientConnection, connect

from tests.support.stack import Account, Api, Site
from tests.support.waits import until

Frame = dict[str, Any]


class Socket:
    """One open socket. Frames that nobody asked for yet are kept in `seen`, in order of arrival."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.seen: list[Frame] = []

    def send(self, kind: str, payload: Frame) -> None:
        self.connection.send(json.dumps({"type": kind, "payload": payload}))

    def pull(self, seconds: float) -> Frame:
        frame: Frame = json.loads(self.connection.recv(timeout=seconds))
        self.seen.append(frame)
        return frame

    def expect(self, kind: str, seconds: float = 10.0, **payload: Any) -> Frame:
        """The first frame of `kind` whose payload has these values, seen already or still to come; taken out."""

        def matching() -> Frame | None:
            for frame in self.seen:
                if frame["type"] == kind and payload.items() <= frame["payload"].items():
                    self.seen.remove(frame)
                    return frame
            self.pull(seconds)
            return None

        found = until(matching, seconds, f"a {kind} with {payload}", 0)
        assert found is not None
        return dict(found["payload"])

    def heartbeat(self, runtime_id: str, **more: Any) -> Frame:
        self.send("daemon:heartbeat", {"runtime_id": runtime_id, "supports_batch_import": True, **more})
        return self.expect("daemon:heartbeat_ack", runtime_id=runtime_id)

    def ask(self, method: str, body: Any, *, timeout_ms: int = 5000, request_id: str = "") -> str:
        request_id = request_id or str(uuid4())
        request = {"request_id": request_id, "method": method, "body": body, "timeout_ms": timeout_ms}
        self.send("daemon:rpc_request", request)
        return request_id

    def answer(self, request_id: str, seconds: float = 10.0) -> Frame:
        return self.expect("daemon:rpc_response", seconds, request_id=request_id)


class Daemon:
    """One machine of one account: HTTP on either replica, and sockets."""

    def __init__(self, site: Site, account: Account) -> None:
        self.site, self.account = site, account
        self.daemon_id = str(uuid4())
        self._stack = ExitStack()

    def api(self, replica: int = 0) -> Api:
        return Api(self.site.servers[replica].url, self.account.token, self.account.workspace_id)

    def post(self, path: str, body: Any = None, replica: int = 0) -> Any:
        return self.api(replica).post(f"/api/daemon/{path}", body)

    def get(self, path: str, replica: int = 0) -> Any:
        return self.api(replica).get(f"/api/daemon/{path}")

    def register(self, *types: str) -> list[str]:
        """Runtime ids in the order of `types`."""
        runtimes = [{"name": kind, "type": kind, "version": "1", "status": "online"} for kind in types or ("plain",)]
        body = {
            "workspace_id": self.account.workspace_id,
            "daemon_id": self.daemon_id,
            "legacy_daemon_ids": None,
            "device_name": "test",
            "cli_version": "0.4.32",
            "launched_by": "",
            "failed_profiles": None,
            "runtimes": runtimes,
        }
        rows = {row["provider"]: row["id"] for row in self.post("register", body)["runtimes"]}
        return [rows[entry["type"]] for entry in runtimes]

    def agent(self, runtime_id: str, **fields: Any) -> str:
        body = {"name": f"agent-{uuid4().hex[:8]}", "runtime_id": runtime_id, **fields}
        return str(self.api().post("/api/agents", body)["id"])

    def enqueue(self, agent_id: str, replica: int = 0, title: str = "An issue") -> str:
        """The id of the task of a new issue that is assigned to the agent."""
        body = {"title": title, "assignee_type": "agent", "assignee_id": agent_id, "allow_duplicate": True}
        issue = self.api(replica).post("/api/issues", body)
        (row,) = self.site.query("SELECT id FROM agent_task_queue WHERE issue_id = %s", issue["id"])
        return str(row["id"])

    def claim_body(self, *runtime_ids: str, max_tasks: int = 5) -> Frame:
        return {"daemon_id": self.daemon_id, "runtime_ids": list(runtime_ids), "max_tasks": max_tasks}

    def task(self, task_id: str) -> dict[str, Any]:
        (row,) = self.site.query("SELECT * FROM agent_task_queue WHERE id = %s", task_id)
        return row

    def socket(
        self, *runtime_ids: str, replica: int = 0, path: str = "/api/daemon/ws", query: str = "", **options: Any
    ) -> Socket:
        query = query or (f"?runtime_ids={quote(','.join(sorted(runtime_ids)), safe='')}" if runtime_ids else "")
        url = self.site.servers[replica].url.replace("http", "ws") + path + query
        headers = options.pop("headers", {"Authorization": f"Bearer {self.account.token}"})
        options = {"compression": None, "open_timeout": 10, "max_size": 2**26, "ping_interval": None, **options}
        return Socket(self._stack.enter_context(connect(url, additional_headers=headers, origin=None, **options)))

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def held(self, sql: str, *params: Any) -> Iterator[None]:
        """Another session holds locks for as long as the block runs."""
        with psycopg.connect(self.site.addresses["DATABASE_URL"], application_name="test-holder") as holder:
            holder.execute(sql, params)
            yield
            holder.rollback()
