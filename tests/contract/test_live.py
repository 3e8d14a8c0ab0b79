"""The browsers' socket: events of one workspace, for its members only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from websockets.exceptions import ConnectionClosed, InvalidStatus

from queue_app.errors import AuthError, ForbiddenError, NotFoundError
from queue_app.models import User
from queue_app.ws import live
from queue_app.ws.connection import Outbox
from tests.contract.socket_client import Daemon
from tests.support.machine import Machine


def test_events_of_a_workspace_reach_its_members_on_every_replica(
    daemon: Daemon, new_daemon: Callable[[], Daemon]
) -> None:
    """V-01, V-02, V-04, V-05, V-06, V-07: each after its commit, with the ids that a client needs to read again."""
    (runtime_id,) = daemon.register("plain")
    agent_id = daemon.agent(runtime_id)
    browser = daemon.socket(replica=1, path="/ws", query=f"?workspace_id={daemon.account.workspace_id}")
    stranger = new_daemon()
    other = stranger.socket(path="/ws", query=f"?workspace_id={stranger.account.workspace_id}")
    task_id = daemon.enqueue(agent_id)
    browser.expect("task:queued", task_id=task_id)
    (task,) = daemon.post("tasks/claim", daemon.claim_body(runtime_id))["tasks"]
    assert browser.expect("task:dispatch", task_id=task_id)["runtime_id"] == runtime_id
    token = {"claim_token": task["claim_token"]}
    daemon.post(f"tasks/{task_id}/start", token)
    browser.expect("task:running", task_id=task_id)
    daemon.post(f"tasks/{task_id}/progress", {**token, "summary": "Launching", "step": 1, "total": 2})
    assert browser.expect("task:progress", task_id=task_id)["summary"] == "Launching"
    message = {"seq": 1, "type": "text", "content": "hello"}
    daemon.post(f"tasks/{task_id}/messages", {**token, "messages": [message]})
    told = browser.expect("task:message", task_id=task_id)
    assert (told["first_seq"], told["messages"][0]["content"]) == (1, "hello")
    daemon.post(f"tasks/{task_id}/complete", {**token, "output": "x"})
    browser.expect("task:completed", task_id=task_id)
    other.connection.ping().wait(10)
    assert other.seen == []


def test_who_may_not_see_a_workspace_is_refused(daemon: Daemon, new_daemon: Callable[[], Daemon]) -> None:
    foreign = new_daemon().account.workspace_id
    for query, headers, status in (
        (f"?workspace_id={foreign}", None, 404),
        ("", None, 404),
        (f"?workspace_id={daemon.account.workspace_id}", {}, 403),
        (f"?workspace_id={daemon.account.workspace_id}", {"Authorization": "Bearer x"}, 401),
    ):
        options: dict[str, Any] = {} if headers is None else {"headers": headers}
        with pytest.raises(InvalidStatus) as refused:
            daemon.socket(path="/ws", query=query, **options)
        assert refused.value.response.status_code == status


def test_a_browser_that_talks_too_much_is_cut(daemon: Daemon) -> None:
    browser = daemon.socket(path="/ws", query=f"?workspace_id={daemon.account.workspace_id}")
    browser.connection.send("x" * 5000)
    with pytest.raises(ConnectionClosed):
        browser.pull(10)


# --------------------------------------------------------------------------------------------------------- sessions


def session_of(user: User) -> str:
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return str(session.session_key)


def scope(machine: Machine, **headers: str) -> dict[str, Any]:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"headers": pairs, "query_string": f"workspace_id={machine.workspace.pk}".encode()}


@pytest.mark.django_db(transaction=True)
def test_a_session_counts_only_from_a_page_of_our_own() -> None:
    """The cookie rides along with any page's request, so a foreign origin, or none, is refused."""
    machine = Machine.make()
    cookie = f"{settings.SESSION_COOKIE_NAME}={session_of(machine.user)}"
    ours = scope(machine, host="tasks.example", origin="https://tasks.example", cookie=cookie)
    assert live._admit(ours) == machine.workspace.pk
    for origin in ("https://evil.example", "null", ""):
        with pytest.raises(ForbiddenError):
            live._admit(scope(machine, host="tasks.example", origin=origin, cookie=cookie))
    with pytest.raises(AuthError):
        live._admit(scope(machine, host="tasks.example", origin="https://tasks.example", cookie="sessionid=x"))
    stranger = Machine.make()
    with pytest.raises(NotFoundError):
        live._admit(scope(stranger, host="tasks.example", origin="https://tasks.example", cookie=cookie))


# ------------------------------------------------------------------------------------------------------- the outbox


async def test_hints_of_one_key_wait_as_one_and_answers_go_first() -> None:
    """What is not sent yet cannot outgrow the number of its keys."""
    outbox = Outbox()
    for number in range(10_000):
        outbox.hint(number % 3, f"hint {number}")
    outbox.answer("answer")
    assert len(outbox) == 4
    taken = [await outbox.take(1) for _ in range(4)]
    assert [item[0] for item in taken if item] == ["answer", "hint 9999", "hint 9997", "hint 9998"]
    assert await outbox.take(0.01) is None


async def test_what_waits_leaves_before_the_connection_closes() -> None:
    outbox = Outbox()
    outbox.answer("last words")
    outbox.close(1000)
    item = await outbox.take(1)
    assert item is not None
    assert item[0] == "last words"
    assert await asyncio.wait_for(outbox.take(60), 1) is None
