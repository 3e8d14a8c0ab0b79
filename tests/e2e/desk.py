"""What one end-to-end test works with: a person, a workspace, a proxy, a hub of scripted agents, and daemons."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.hub import SCRIPT, Hub, Launch
from tests.support.proxy import Proxy
from tests.support.stack import Account, Api, ApiError, Daemon, Row, Site, write_launcher
from tests.support.waits import until

TERMINAL = ("completed", "failed", "cancelled")
PLAIN, CLAUDE = "plain", "claude"


class Desk:
    """Everything made here goes through the product's own doors; `row` only looks."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.account: Account = site.account()
        self.api = self.api_of(0)
        self._stack = contextlib.ExitStack()
        self.hub = self._stack.enter_context(Hub(folder))
        self.proxy = self._stack.enter_context(Proxy(site.servers[0].port))
        self.daemons: list[Daemon] = []
        self._runtimes: dict[tuple[str, str], str] = {}
        self._made = 0
        command = write_launcher(folder / "scripted-agent", SCRIPT, self.hub.path)
        self.profiles = {family: self._profile(family, command) for family in (PLAIN, CLAUDE)}

    def second_proxy(self) -> Proxy:
        return self._stack.enter_context(Proxy(self.site.servers[0].port))

    def api_of(self, replica: int) -> Api:
        return Api(self.site.servers[replica].url, self.account.token, self.account.workspace_id)

    def close(self) -> None:
        """End the daemons and look for what they should have taken with them."""
        try:
            for daemon in self.daemons:
                for frozen in daemon.agents():  # a test that failed half-way may have left them asleep
                    with contextlib.suppress(psutil.Error):
                        frozen.resume()
                daemon.kill()
            for daemon in self.daemons:
                self.wait_no_agents(daemon)
        finally:
            for left in [each for daemon in self.daemons for each in daemon.agents()]:
                with contextlib.suppress(psutil.Error):
                    left.kill()
            self._stack.close()

    # -- making things --

    def _profile(self, family: str, command: Path) -> str:
        path = f"/api/workspaces/{self.account.workspace_id}/runtime-profiles"
        body = {"display_name": f"Scripted {family}", "protocol_family": family, "command_name": str(command)}
        return str(self.api.post(path, body)["id"])

    def prepare_daemon(
        self, *, scale: float | None = None, name: str = "daemon", proxy: Proxy | None = None, **settings: str
    ) -> Daemon:
        """A daemon that is set up and not started; it reaches the server through a proxy."""
        folder = self.folder / name
        folder.mkdir()
        url = (proxy or self.proxy).url
        daemon = Daemon(folder, url, self.account.token, scale or self.site.scale, settings)
        self.daemons.append(daemon)
        return daemon

    def daemon(self, **settings: Any) -> Daemon:
        """A running daemon whose runtimes are registered."""
        daemon = self.prepare_daemon(**settings)
        daemon.start()
        return daemon.wait_ready()

    def runtime(self, family: str = PLAIN) -> str:
        """The runtime that a daemon registered for a profile; the newest one."""
        look = "SELECT id FROM agent_runtime WHERE profile_id = %s AND status = 'online' ORDER BY created_at DESC"
        rows = until(lambda: self.site.query(look, self.profiles[family]), 20, f"a runtime of family {family}")
        return str(rows[0]["id"])

    def agent(self, family: str = PLAIN, **fields: Any) -> str:
        self._made += 1
        body = {"name": f"Agent {self._made}", "runtime_id": self.runtime(family), **fields}
        return str(self.api.post("/api/agents", body)["id"])

    def issue(self, agent_id: str | None = None, *, replica: int = 0, **fields: Any) -> Row:
        self._made += 1
        body = {"title": f"Issue {self._made}", **fields}
        if agent_id:
            body |= {"assignee_type": "agent", "assignee_id": agent_id}
        return dict(self.api_of(replica).post("/api/issues", body))

    def task(self, agent_id: str, *, replica: int = 0, **fields: Any) -> str:
        """File an issue for the agent; the id of the task that this made."""
        return self.task_of(str(self.issue(agent_id, replica=replica, **fields)["id"]))

    def task_of(self, issue_id: str) -> str:
        return str(self.tasks_of(issue_id)[0]["id"])

    def running(self, agent_id: str, **fields: Any) -> tuple[str, Launch]:
        """File an issue and wait until its agent works."""
        task_id = self.task(agent_id, **fields)
        launch = self.hub.wait(task_id)
        self.wait_status(task_id, "running")
        return task_id, launch

    def repository(self) -> Path:
        """A local git repository with one commit, allowed in the workspace."""
        path = self.folder / "repository"
        script = f"git init -q -b main {path}; cd {path}; echo one > file.txt; git add .; git commit -q -m first"
        identity = {"GIT_CONFIG_GLOBAL": str(self.folder / "gitconfig")}
        (self.folder / "gitconfig").write_text("[user]\n\tname = Owner\n\temail = owner@example.test\n", "utf-8")
        subprocess.run(["sh", "-ec", script], check=True, env={**identity, "PATH": "/usr/bin:/bin"}, timeout=30)
        self.api.call("PATCH", f"/api/workspaces/{self.account.workspace_id}", {"repos": [{"url": f"file://{path}"}]})
        return path

    # -- looking --

    def row(self, task_id: str) -> Row:
        rows = self.site.query("SELECT * FROM agent_task_queue WHERE id = %s", task_id)
        assert rows, f"no task {task_id}"
        return rows[0]

    def tasks_of(self, issue_id: str) -> list[Row]:
        return self.site.query("SELECT * FROM agent_task_queue WHERE issue_id = %s ORDER BY created_at, id", issue_id)

    def children(self, task_id: str) -> list[Row]:
        return self.site.query("SELECT * FROM agent_task_queue WHERE parent_task_id = %s ORDER BY id", task_id)

    def events(self, task_id: str) -> list[str]:
        """The verbs of the task's events, in order."""
        rows = self.site.query("SELECT verb FROM task_event WHERE task_id = %s ORDER BY seq", task_id)
        return [str(row["verb"]) for row in rows]

    def messages(self, task_id: str) -> list[Row]:
        return list(self.api.get(f"/api/tasks/{task_id}/messages"))

    def said(self, task_id: str) -> str:
        """What the agent said, as the server keeps it."""
        return "\n".join(str(message.get("content") or "") for message in self.messages(task_id))

    def comments(self, issue_id: str) -> list[Row]:
        return list(self.api.get(f"/api/issues/{issue_id}/comments"))

    def status(self, task_id: str) -> str:
        return str(self.row(task_id)["status"])

    def wait_status(self, task_id: str, *statuses: str, seconds: float = 20.0) -> Row:
        """The row once it has one of the statuses; at once an error when it ended in another way."""

        def look() -> Row | None:
            row = self.row(task_id)
            if row["status"] in statuses:
                return row
            if row["status"] in TERMINAL:
                raise Ended(f"task ended {row['status']}: {row['failure_reason']} {row['error']}")
            return None

        return until(look, seconds, f"task is {' or '.join(statuses)}; it is {self.status(task_id)}")

    def wait_no_agents(self, daemon: Daemon, seconds: float = 20.0) -> None:
        until(lambda: not daemon.agents(), seconds, "no process of an agent is left")

    def claims(self) -> int:
        """How many claim requests the daemons have put on the wire, over either door."""
        posts = self.proxy.seen("POST /api/daemon/tasks/claim") + self.proxy.seen("/tasks/claim HTTP")
        frames = [unit for unit in self.proxy.seen("tasks.claim") if unit.websocket]
        return len({id(unit) for unit in (*posts, *frames)})

    def answers(self) -> int:
        """How many claim requests have been answered."""
        frames = self.proxy.seen("daemon:rpc_response", down=True)
        return len(frames) + len([unit for unit in self.proxy.units if unit.down and "/tasks/claim" in unit.request])


class Ended(Exception):
    """Not an AssertionError: a task that has ended will never be what a test waits for."""


def alive(pids: Iterable[int]) -> list[int]:
    """Which of these processes live; zombies do not."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


__all__ = ["CLAUDE", "PLAIN", "ApiError", "Desk", "alive"]
