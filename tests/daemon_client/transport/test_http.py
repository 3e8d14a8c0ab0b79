"""The plain transport: what an answer, its absence and its refusal mean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from daemon_client import protocol
from daemon_client.clock import ManualClock, SystemClock
from daemon_client.errors import DecodeError, HttpError, TransportError
from daemon_client.protocol import ClaimedTask
from daemon_client.transport.http import HttpClient, ServerApi, fill
from daemon_client.transport.retry import TERMINAL, attempt
from tests.support.fake_server import TOKEN, FakeServer
from tests.support.wait import until_async


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as fake:
        yield fake


@pytest.fixture
async def api(server: FakeServer) -> AsyncIterator[ServerApi]:
    http = HttpClient(server.url, TOKEN, SystemClock())
    yield ServerApi(http)
    await http.close()


TASK = ClaimedTask("t1", "a", "r1", "w", claim_token="c1")


async def test_every_request_says_who_asks(server: FakeServer, api: ServerApi) -> None:
    await api.workspaces()
    headers = server.seen[0].headers
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["X-Client-Platform"] == "daemon"
    assert headers["X-Client-Version"]
    assert "rpc-v1" in headers["X-Client-Capabilities"].split(",")


async def test_the_claim_token_travels_in_every_call_about_a_task(server: FakeServer, api: ServerApi) -> None:
    server.fault("/tasks/", times=99, status=200, body={"status": "running"})
    calls = [
        api.prepare_lease(TASK), api.wait_local_directory(TASK, "busy"), api.start(TASK), api.progress(TASK, "x", 1, 2),
        api.messages(TASK, []), api.session(TASK, {}), api.usage(TASK, []), api.complete(TASK, {}), api.fail(TASK, {}),
        api.cancel_ack(TASK, {}),
    ]  # fmt: skip
    for call in calls:
        await call
    await api.status(TASK)
    posts = [each for each in server.seen if each.method == "POST"]
    assert len(posts) == 10
    assert {each.body["claim_token"] for each in posts} == {"c1"}
    assert server.seen[-1].query == {"claim_token": "c1"}


async def test_a_task_without_token_sends_none(server: FakeServer, api: ServerApi) -> None:
    server.fault("/tasks/", times=9, status=200, body={"status": "running"})
    plain = ClaimedTask("t1", "a", "r1", "w")
    await api.start(plain)
    await api.status(plain)
    assert server.seen[0].body == {}
    assert server.seen[1].query == {}


async def test_errors_keep_status_text_and_code(server: FakeServer, api: ServerApi) -> None:
    server.fault("start", status=409, body={"error": "older delivery", "code": "start_claim_rejected"})
    with pytest.raises(HttpError) as caught:
        await api.start(TASK)
    assert caught.value.claim_is_over
    assert not caught.value.transient


@pytest.mark.parametrize(("status", "transient"), [(500, True), (503, True), (408, True), (429, True), (400, False)])
async def test_which_refusals_are_worth_another_try(
    server: FakeServer, api: ServerApi, status: int, transient: bool
) -> None:
    server.fault("complete", status=status)
    with pytest.raises(HttpError) as caught:
        await api.complete(TASK, {})
    assert caught.value.transient is transient


async def test_a_foreign_404_is_not_the_servers_word(server: FakeServer, api: ServerApi) -> None:
    server.fault("status", status=404, body="<html>404 Not Found</html>")
    with pytest.raises(HttpError) as caught:
        await api.status(TASK)
    assert not caught.value.task_not_found
    with pytest.raises(HttpError) as caught:
        await api.status(TASK)
    assert caught.value.task_not_found


async def test_a_redirect_is_refused_not_followed(server: FakeServer, api: ServerApi) -> None:
    """Followed, it would turn the POST into a GET and lose the result that it carries."""
    server.fault("complete", status=301)
    with pytest.raises(HttpError):
        await api.complete(TASK, {"output": "x"})
    assert [each.method for each in server.seen] == ["POST"]


async def test_an_answer_that_is_not_json_is_an_error(server: FakeServer, api: ServerApi) -> None:
    server.fault("claim", status=200, body="")
    with pytest.raises(DecodeError):
        await api.claim({"daemon_id": "d", "runtime_ids": ["r"], "max_tasks": 1})


async def test_no_answer_in_time_may_have_been_acted_upon(server: FakeServer) -> None:
    """C-24: a claim gives up after 5 s, other calls after 30 s."""
    clock = ManualClock()
    http = HttpClient(server.url, TOKEN, clock)
    api = ServerApi(http)
    hold = asyncio.Event()
    server.fault("claim|start", times=2, hold=hold)
    claim = asyncio.create_task(api.claim({"daemon_id": "d", "runtime_ids": ["r"], "max_tasks": 1}))
    start = asyncio.create_task(api.start(TASK))
    await until_async(lambda: len(server.seen) == 2)
    await clock.advance(4.9)
    assert not claim.done()
    await clock.advance(0.2)
    with pytest.raises(TransportError) as caught:
        await claim
    assert not caught.value.unsent
    await clock.advance(24)
    assert not start.done()
    await clock.advance(1)
    with pytest.raises(TransportError):
        await start
    await http.close()


async def test_a_refused_connection_was_surely_not_sent() -> None:
    http = HttpClient("http://127.0.0.1:9", TOKEN, SystemClock())
    with pytest.raises(TransportError) as caught:
        await http.json("GET", "/api/me")
    assert caught.value.unsent
    assert caught.value.transient
    await http.close()


async def test_dropping_connections_cuts_no_request(server: FakeServer, api: ServerApi) -> None:
    hold = asyncio.Event()
    server.fault("/api/me", hold=hold)
    held = asyncio.create_task(api.me())
    await until_async(lambda: server.seen)
    await api.http.drop_connections()
    hold.set()
    assert (await held)["name"] == "Ada"
    assert (await api.me())["name"] == "Ada"


async def test_the_terminal_schedule() -> None:
    """RP-02: the first attempt at once, then after 4, 8, 16, 32 and 64 s, then no more."""
    clock = ManualClock()
    at: list[float] = []

    async def call() -> None:
        at.append(clock.monotonic())
        raise TransportError("down")

    job = asyncio.create_task(attempt(call, TERMINAL, clock))
    await clock.advance(200)
    with pytest.raises(TransportError):
        await job
    assert at == [0, 4, 12, 28, 60, 124]


async def test_a_permanent_error_is_not_tried_again() -> None:
    calls: list[int] = []

    async def call() -> None:
        calls.append(1)
        raise HttpError("POST", "/x", 400, "no")

    with pytest.raises(HttpError):
        await attempt(call, TERMINAL, ManualClock())
    assert len(calls) == 1


def test_ids_cannot_leave_their_segment() -> None:
    assert fill(protocol.ROUTE_TASK_START, task_id="../x?y") == "/api/daemon/tasks/..%2Fx%3Fy/start"


async def test_a_server_on_this_machine_is_reached_past_any_proxy(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An office machine names a proxy for everything; it could never reach our loopback."""
    for name in ("http_proxy", "HTTP_PROXY", "ws_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    http = HttpClient(server.url, TOKEN, SystemClock())
    assert (await ServerApi(http).me())["name"] == "Ada"
    await http.close()
