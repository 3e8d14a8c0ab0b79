"""The daemon socket: who gets in, what it carries, and that nothing on it waits for anything else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from channels_redis.pubsub import RedisPubSubChannelLayer
from websockets.exceptions import ConnectionClosed, InvalidStatus

from multica.management.commands.serve import configuration
from tests.contract.socket_client import Daemon, Socket
from tests.support.stack import ApiError, Site
from tests.support.waits import Stopwatch, until

LOCK_AGENT = "SELECT 1 FROM agent WHERE id = %s FOR UPDATE"


def send_hints(site: Site, group: str, frames: list[dict[str, Any]]) -> None:
    """What another replica sends: messages of a group, in order."""
    hosts = [{"address": site.addresses["REDIS_URL"]}]

    async def send() -> None:
        layer = RedisPubSubChannelLayer(hosts=hosts, prefix=site.env["MULTICA_CHANNEL_PREFIX"])
        for frame in frames:
            await layer.group_send(group, {"type": "daemon.hint", "frame": frame})
        await layer.flush()

    asyncio.run(send())


def closed_with(socket: Socket) -> int | None:
    """The code with which the server ends the connection, after whatever it still says."""
    try:
        while True:
            socket.pull(10)
    except ConnectionClosed as ended:
        return ended.rcvd.code if ended.rcvd else None


# ------------------------------------------------------------------------------------------------------ admission


def test_who_is_refused_is_told_by_the_status_of_the_handshake(
    daemon: Daemon, new_daemon: Callable[[], Daemon]
) -> None:
    """401 without a valid token, 404 when any runtime is unknown or foreign; no origin is needed or looked at."""
    (mine,) = daemon.register("plain")
    (foreign,) = new_daemon().register("plain")
    bearer = {"Authorization": f"Bearer {daemon.account.token}"}
    refused: list[tuple[dict[str, str], str, int]] = [
        ({}, "", 401),
        ({"Authorization": "Bearer mul_" + "0" * 40}, "", 401),
        ({"Authorization": "Token x"}, "", 401),
        (bearer, f"?runtime_ids={uuid4()}", 404),
        (bearer, f"?runtime_ids={mine}%2C{foreign}", 404),
        (bearer, f"?runtime_id={mine}&runtime_id=garbage", 404),
    ]
    for headers, query, status in refused:
        with pytest.raises(InvalidStatus) as answer:
            daemon.socket(query=query, headers=headers)
        assert answer.value.response.status_code == status, query
    for query in (f"?runtime_ids={mine}", f"?runtime_id={mine}", f"?runtime_ids={mine}%2C{mine}&runtime_id={mine}"):
        assert daemon.socket(query=query, headers={**bearer, "Origin": "http://evil.example"}).heartbeat(mine)
    with pytest.raises(InvalidStatus):
        daemon.socket(query="/unknown")


def test_a_connection_without_runtimes_hears_of_its_account(daemon: Daemon) -> None:
    """Legal; and the server's own pings keep it open, since nothing else does."""
    socket = daemon.socket()
    frame = {"type": "daemon:workspaces_changed", "payload": {}}

    def told() -> bool:
        send_hints(daemon.site, f"user.{daemon.account.user_id}", [frame])
        socket.expect("daemon:workspaces_changed", 0.5)
        return True

    until(told, 10)
    serving = configuration("127.0.0.1", 0)
    assert serving.ws_ping_interval is not None
    assert serving.ws_ping_interval < 60


def test_a_frame_over_the_limit_ends_the_connection(daemon: Daemon) -> None:
    (runtime_id,) = daemon.register("plain")
    socket = daemon.socket(runtime_id)
    socket.send("daemon:heartbeat", {"runtime_id": runtime_id, "x": "y" * 60_000})
    assert socket.expect("daemon:heartbeat_ack")
    socket.send("daemon:heartbeat", {"runtime_id": runtime_id, "x": "y" * 70_000})
    assert closed_with(socket) == 1009


def test_what_cannot_be_read_and_what_is_unknown_is_ignored(daemon: Daemon) -> None:
    (runtime_id,) = daemon.register("plain")
    socket = daemon.socket(runtime_id)
    for raw in ("{", "[]", "1", json.dumps({"type": "daemon:new", "payload": {}}), json.dumps({"type": 5}), "{}"):
        socket.connection.send(raw)
    socket.connection.send(b"\x00\xff")
    socket.connection.send(json.dumps({"type": "daemon:heartbeat", "payload": {"runtime_id": runtime_id}}).encode())
    assert socket.expect("daemon:heartbeat_ack", runtime_id=runtime_id)["status"] == "ok"
    assert socket.seen == []


def test_a_token_that_is_revoked_ends_open_sockets_on_every_replica(daemon: Daemon) -> None:
    """Revoked through one replica, refused by the other at the next call and at the next frame."""
    (runtime_id,) = daemon.register("plain")
    made = daemon.api().post("/api/tokens", {"name": "second"})
    sockets = [
        daemon.socket(runtime_id, replica=number, headers={"Authorization": f"Bearer {made['token']}"})
        for number in (0, 1)
    ]
    for socket in sockets:
        socket.heartbeat(runtime_id)
    daemon.api(1).call("DELETE", f"/api/tokens/{made['id']}")
    for socket in sockets:
        socket.send("daemon:heartbeat", {"runtime_id": runtime_id})
        assert closed_with(socket) == 4401


# ------------------------------------------------------------------------------------------------------ heartbeats


def test_only_runtimes_of_the_connection_are_acknowledged(daemon: Daemon) -> None:
    first, second = daemon.register("plain", "claude")
    socket = daemon.socket(first)
    socket.send("daemon:heartbeat", {"runtime_id": second})
    socket.send("daemon:heartbeat", {"runtime_id": "garbage"})
    assert socket.heartbeat(first) == {"status": "ok", "runtime_id": first, "server_capabilities": ["rpc-v1"]}
    assert socket.seen == []


def test_sockets_have_database_sessions_of_their_own_name(daemon: Daemon) -> None:
    """The HTTP door, the claim door and the sockets can be told apart in the database, and keep their connections."""
    (runtime_id,) = daemon.register("plain")
    socket = daemon.socket(runtime_id)
    look = "SELECT pid FROM pg_stat_activity WHERE application_name = 'multica-ws' AND datname = current_database()"
    for _ in range(30):
        socket.heartbeat(runtime_id)
    sessions = {row["pid"] for row in daemon.site.query(look)}
    assert 0 < len(sessions) <= 16  # eight threads a replica
    for _ in range(30):
        socket.heartbeat(runtime_id)
    assert {row["pid"] for row in daemon.site.query(look)} >= sessions


def test_whoever_has_an_answer_may_ask_again_at_once(daemon: Daemon) -> None:
    """The place of a call is free when its answer arrives, not a moment later."""
    (runtime_id,) = daemon.register("plain")
    socket = daemon.socket(runtime_id)
    for _ in range(300):
        socket.heartbeat(runtime_id)
    for _ in range(100):
        asked = [socket.ask("tasks.claim", daemon.claim_body(runtime_id)) for _ in range(8)]
        assert {socket.answer(request)["status"] for request in asked} == {200}


def test_a_runtime_that_is_deleted_is_reported_gone(daemon: Daemon) -> None:
    (runtime_id,) = daemon.register("plain")
    socket = daemon.socket(runtime_id)
    socket.heartbeat(runtime_id)
    script = f"from queue_app.models import AgentRuntime; AgentRuntime.objects.get(pk='{runtime_id}').delete()"
    daemon.site.command("shell", "--verbosity", "0", "--command", script)
    ack = socket.heartbeat(runtime_id)
    assert (ack["runtime_gone"], ack["status"], ack["runtime_id"]) == (True, "runtime_gone", runtime_id)
    with pytest.raises(ApiError, match="runtime not found"):
        daemon.post("heartbeat", {"runtime_id": runtime_id})


# ------------------------------------------------------------------------------------------------------------ hints


def test_work_made_on_one_replica_wakes_a_daemon_of_the_other(daemon: Daemon) -> None:
    """W-18: the hint crosses replicas, and the claim that follows finds the task."""
    (runtime_id,) = daemon.register("plain")
    agent_id = daemon.agent(runtime_id)
    socket = daemon.socket(runtime_id, replica=0)
    socket.heartbeat(runtime_id)
    watch = Stopwatch()
    task_id = daemon.enqueue(agent_id, replica=1)
    assert socket.expect("daemon:task_available", task_id=task_id)["runtime_id"] == runtime_id
    answer = socket.answer(socket.ask("tasks.claim", daemon.claim_body(runtime_id)))
    assert [task["id"] for task in answer["body"]["tasks"]] == [task_id]
    assert watch.seconds < 5


def test_hints_carry_ids_and_nothing_of_the_work(daemon: Daemon) -> None:
    """Q-02: no prompt, no context, no credential in any frame that the server sends unasked."""
    (runtime_id,) = daemon.register("plain")
    agent_id = daemon.agent(runtime_id, instructions="secret instructions")
    socket = daemon.socket(runtime_id)
    socket.heartbeat(runtime_id)
    task_id = daemon.enqueue(agent_id, title="secret title")
    while not any(frame["payload"].get("task_id") == task_id for frame in socket.seen):
        socket.pull(10)
    for frame in socket.seen:
        assert set(frame["payload"]) <= {"runtime_id", "task_id"}
        assert "secret" not in json.dumps(frame)


def test_a_hint_is_not_work(daemon: Daemon) -> None:
    """Q-03: without a claim the row stays queued, and after a hundred hints one claim gives one task."""
    (runtime_id,) = daemon.register("plain")
    task_id = daemon.enqueue(daemon.agent(runtime_id))
    socket = daemon.socket(runtime_id)
    socket.heartbeat(runtime_id)
    hint = {"type": "daemon:task_available", "payload": {"runtime_id": runtime_id, "task_id": task_id}}

    def hinted() -> bool:
        send_hints(daemon.site, f"runtime.{runtime_id}", [hint] * 100)
        socket.expect("daemon:task_available", 0.5)
        return True

    until(hinted, 10)
    assert daemon.task(task_id)["status"] == "queued"
    asked = [socket.ask("tasks.claim", daemon.claim_body(runtime_id)) for _ in range(5)]
    given = [task["id"] for request in asked for task in socket.answer(request)["body"]["tasks"]]
    assert given == [task_id]
    assert daemon.task(task_id)["deliveries"] == 1


def test_a_flood_of_hints_delays_no_answer_and_is_not_queued_up(daemon: Daemon) -> None:
    """W-02, server half: 10,000 hints meet a client that does not read; they fold into few frames, acks get through."""
    (runtime_id,) = daemon.register("plain")
    socket = daemon.socket(runtime_id)
    socket.heartbeat(runtime_id)
    hint = {"type": "daemon:task_available", "payload": {"runtime_id": runtime_id, "task_id": "x" * 1000}}
    send_hints(daemon.site, f"runtime.{runtime_id}", [hint] * 10_000)
    watch = Stopwatch()
    for _ in range(5):
        socket.heartbeat(runtime_id)
    assert watch.seconds < 10
    # A client that reads slowly gets fewer frames, never a backlog.
    assert len(socket.seen) < 9_000


# ------------------------------------------------------------------------------------------------------------- RPCs


def test_answers_come_as_they_are_ready_by_id(daemon: Daemon) -> None:
    """W-03: a claim that has to wait holds nothing up; each request gets its own answer."""
    busy, idle = daemon.register("plain", "claude")
    agent_id = daemon.agent(busy)
    task_id = daemon.enqueue(agent_id)
    socket = daemon.socket(busy, idle)
    with daemon.held(LOCK_AGENT, agent_id):
        slow = socket.ask("tasks.claim", daemon.claim_body(busy))
        quick = socket.ask("tasks.claim", daemon.claim_body(idle))
        odd = socket.ask("tasks.nothing", {})
        assert socket.answer(quick)["body"] == {"tasks": []}
        unknown = socket.answer(odd)
        assert (unknown["status"], unknown["body"]["code"]) == (404, "unknown_method")
        assert unknown["error"]
        assert socket.heartbeat(idle)
        assert not any(frame["payload"].get("request_id") == slow for frame in socket.seen)
    answer = socket.answer(slow)
    assert [task["id"] for task in answer["body"]["tasks"]] == [task_id]


def test_more_than_eight_calls_at_a_time_are_refused(daemon: Daemon) -> None:
    (runtime_id,) = daemon.register("plain")
    agent_id = daemon.agent(runtime_id)
    daemon.enqueue(agent_id)
    socket = daemon.socket(runtime_id)
    with daemon.held(LOCK_AGENT, agent_id):
        asked = [socket.ask("tasks.claim", daemon.claim_body(runtime_id)) for _ in range(9)]
        ninth = socket.answer(asked[-1])
        assert (ninth["status"], ninth["body"]["code"]) == (429, "too_many_in_flight")
    statuses = [socket.answer(request)["status"] for request in asked[:-1]]
    assert set(statuses) <= {200, 503}
    # The places are free again.
    assert socket.answer(socket.ask("tasks.claim", daemon.claim_body(runtime_id)))["status"] == 200


def test_a_call_that_ends_too_late_takes_nothing(daemon: Daemon) -> None:
    """A non-2xx means that nothing was claimed, so the daemon may claim over HTTP in the same round."""
    (runtime_id,) = daemon.register("plain")
    agent_id = daemon.agent(runtime_id)
    task_id = daemon.enqueue(agent_id)
    socket = daemon.socket(runtime_id)
    waiting = """SELECT 1 FROM pg_stat_activity WHERE application_name = 'multica-claim' AND wait_event_type = 'Lock'
                  AND datname = current_database() AND clock_timestamp() - query_start > interval '500 ms'"""
    with daemon.held(LOCK_AGENT, agent_id):
        request = socket.ask("tasks.claim", daemon.claim_body(runtime_id), timeout_ms=300)
        until(lambda: daemon.site.query(waiting), 5, "the claim waits past its limit")
    # The lock is free now: without its limit the claim would go through.
    assert socket.answer(request)["status"] == 503
    assert daemon.task(task_id)["status"] == "queued"
    (task,) = daemon.post("tasks/claim", daemon.claim_body(runtime_id))["tasks"]
    assert task["id"] == task_id


def test_a_call_that_is_wrong_is_answered_by_its_id(daemon: Daemon) -> None:
    (runtime_id,) = daemon.register("plain")
    socket = daemon.socket(runtime_id)
    for body, field in (
        ({"runtime_ids": [runtime_id]}, "daemon_id"),
        ({"daemon_id": "d", "max_tasks": "x"}, "max_tasks"),
    ):
        answer = socket.answer(socket.ask("tasks.claim", body))
        assert (answer["status"], answer["body"]["field"]) == (400, field)
    for broken in ({"request_id": "a", "method": 5}, {"request_id": "b", "method": "tasks.claim", "body": []}):
        socket.send("daemon:rpc_request", broken)
        assert socket.answer(str(broken["request_id"]))["status"] == 400
    socket.send("daemon:rpc_request", {"method": "tasks.claim", "body": {}})
    assert socket.heartbeat(runtime_id)
    assert socket.seen == []


def test_both_doors_give_the_same_answer(daemon: Daemon) -> None:
    """W-04: one service behind the socket and HTTP."""
    (runtime_id,) = daemon.register("plain")
    agent_id = daemon.agent(runtime_id)
    socket = daemon.socket(runtime_id)
    daemon.enqueue(agent_id, title="one")
    over_socket = socket.answer(socket.ask("tasks.claim", daemon.claim_body(runtime_id)))["body"]["tasks"]
    daemon.enqueue(agent_id, title="two")
    over_http = daemon.post("tasks/claim", daemon.claim_body(runtime_id))["tasks"]
    assert len(over_socket) == len(over_http) == 1
    assert set(over_socket[0]) == set(over_http[0])
