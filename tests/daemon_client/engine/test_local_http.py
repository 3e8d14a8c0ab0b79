"""The daemon's own port: who may ask what, and what an agent can have checked out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from daemon_client.engine.supervisor import Daemon
from daemon_client.workspace.repo_cache import RepoBusy, RepoError
from tests.daemon_client.engine.conftest import Rig, until_stopped
from tests.support.fake_server import FakeTask
from tests.support.wait import until_async

URL = "https://example.org/code.git"


class Door:
    """Requests to one daemon's port, with the session of a running task at hand."""

    def __init__(self, rig: Rig, daemon: Daemon, task: FakeTask, session: aiohttp.ClientSession) -> None:
        self.rig, self.daemon, self.task, self.session = rig, daemon, task, session

    @property
    def workdir(self) -> str:
        return str(self.rig.bench.root / self.task.id / "workdir")

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        url = f"http://127.0.0.1:{self.daemon.ctx.port}{path}"
        async with self.session.request(method, url, json=body, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None), answer.headers

    async def checkout(self, token: str | None = None, **changes: Any) -> tuple[int, Any, Any]:
        body = {
            "url": URL,
            "workspace_id": self.rig.server.workspace_id,
            "task_id": self.task.id,
            "workdir": self.workdir,
            "agent_name": "Somebody Else",
        } | changes
        bearer = self.task.auth_token if token is None else token
        return await self.call("POST", "/repo/checkout", body, Authorization=f"Bearer {bearer}")


@pytest.fixture
async def door(rig: Rig) -> AsyncIterator[Door]:
    rig.bench.script = until_stopped
    async with rig.daemon() as daemon, aiohttp.ClientSession() as session:
        task = rig.server.add_task(repos=[{"url": URL, "ref": "develop"}])
        await rig.server.hint()
        await until_async(lambda: task.id in rig.bench.launched)
        yield Door(rig, daemon, task, session)


async def test_health(door: Door) -> None:
    status, health, _ = await door.call("GET", "/health")
    assert status == 200
    assert health["status"] == "running"
    assert health["pid"] == os.getpid()
    assert (health["active_task_count"], health["running_task_count"]) == (1, 1)
    assert health["agents"] == ["claude"]
    assert health["workspaces"][0]["runtimes"] == door.rig.server.runtime_ids()
    assert health["loops"]["poller"]


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "rebound.example:1"}])
async def test_no_web_page_may_ask(door: Door, headers: dict[str, str]) -> None:
    status, _, _ = await door.call("POST", "/shutdown", {}, **headers)
    assert status == 403
    assert not door.daemon._stop.is_set()


async def test_shutdown_with_a_drain(door: Door) -> None:
    status, answer, _ = await door.call("POST", "/shutdown", {"drain": "soon"})
    assert status == 400
    assert "drain" in answer["error"]
    status, _, _ = await door.call("POST", "/shutdown", {"drain": "2h"})
    assert status == 200
    await until_async(lambda: door.daemon.poller.stopped)
    assert door.task.status == "running"


async def test_a_checkout(door: Door) -> None:
    """The default ref is the task's; names and ids are those of the token, whatever the body says."""
    status, answer, _ = await door.checkout()
    assert status == 200
    assert answer == {"path": f"{os.path.realpath(door.workdir)}/repo", "branch_name": "agent/builder/1"}
    (asked,) = door.rig.bench.checkouts
    assert (asked["url"], asked["ref"], asked["agent_name"]) == (URL, "develop", "Builder")
    assert asked["task"].id == door.task.id


@pytest.mark.parametrize("token", ["", "mat_wrong", "mul_" + "a" * 40])
async def test_only_a_running_tasks_token_opens_it(door: Door, token: str) -> None:
    status, _, _ = await door.checkout(token)
    assert status == 401
    assert not door.rig.bench.checkouts


async def test_a_token_is_worth_nothing_when_its_run_is_over(door: Door) -> None:
    door.task.status = "cancelled"
    await until_async(lambda: door.task.acks)
    status, _, _ = await door.checkout()
    assert status == 401


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"task_id": "another"}, 403),
        ({"workspace_id": "another"}, 403),
        ({"workdir": "/etc"}, 403),
        ({"workdir": "relative"}, 400),
        ({"url": ""}, 400),
        ({"url": "https://example.org/other.git"}, 400),
    ],
)
async def test_what_a_checkout_may_not_do(door: Door, changes: dict[str, str], status: int) -> None:
    """Y-08: only listed repositories, only into the task's own directory, only as the task itself."""
    assert (await door.checkout(**changes))[0] == status
    assert not door.rig.bench.checkouts


async def test_a_link_does_not_lead_out(door: Door) -> None:
    os.symlink("/tmp", f"{door.workdir}/out")
    assert (await door.checkout(workdir=f"{door.workdir}/out"))[0] == 403


async def test_a_repository_added_meanwhile_is_allowed(door: Door) -> None:
    door.rig.server.repos = [{"url": "https://example.org/new.git"}]
    assert (await door.checkout(url="https://example.org/new.git"))[0] == 200


async def test_a_busy_repository_may_be_asked_again(door: Door) -> None:
    async def busy(**_: Any) -> Any:
        raise RepoBusy("held by another task")

    door.rig.bench.checkout = busy  # type: ignore[method-assign]
    status, _, headers = await door.checkout(retry_busy=True)
    assert status == 503
    assert headers["X-Multica-Retryable"] == "repo-busy"
    assert headers["Retry-After"] == "2"


async def test_a_broken_repository_says_why(door: Door) -> None:
    async def broken(**_: Any) -> Any:
        raise RepoError("no such ref")

    door.rig.bench.checkout = broken  # type: ignore[method-assign]
    status, answer, _ = await door.checkout()
    assert (status, answer) == (500, {"error": "no such ref"})


async def test_health_answers_while_the_server_is_away(rig: Rig) -> None:
    rig.server.unreachable = True
    async with rig.daemon(ready=False) as daemon, aiohttp.ClientSession() as session:
        await until_async(lambda: daemon.ctx.port)
        async with asyncio.timeout(5), session.get(f"http://127.0.0.1:{daemon.ctx.port}/health") as answer:
            assert (await answer.json())["status"] == "starting"
