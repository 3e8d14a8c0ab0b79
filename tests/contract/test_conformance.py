"""The whole traffic of one daemon, in the order in which real ones send it, over a real server and a real socket."""

from __future__ import annotations

import json

import pytest

from tests.contract.socket_client import Daemon, Socket
from tests.support.stack import ApiError


def connect(daemon: Daemon, runtime_ids: list[str]) -> Socket:
    socket = daemon.socket(*runtime_ids)
    for runtime_id in runtime_ids:
        ack = socket.heartbeat(runtime_id)
        assert ack["server_capabilities"] == ["rpc-v1"]
        assert "runtime_gone" not in ack
    return socket


def test_a_daemon_from_its_start_to_its_end(daemon: Daemon) -> None:
    """W-01, W-04: account, registration, socket, claim over it, one run to its result, the next claim, goodbye."""
    assert set(daemon.api().post("/api/tokens/current/renew")) == {"expires_at", "renewed"}
    (workspace,) = daemon.get("workspaces")
    assert set(workspace) == {"id", "name"}
    profiles = daemon.get(f"workspaces/{workspace['id']}/runtime-profiles")
    assert profiles == {"workspace_id": workspace["id"], "runtime_profiles": []}
    runtime_ids = daemon.register("plain", "claude")
    for runtime_id in runtime_ids:
        assert daemon.post(f"runtimes/{runtime_id}/recover-orphans") == {"orphaned": 0, "retried": 0}
    socket = connect(daemon, runtime_ids)

    first = socket.answer(socket.ask("tasks.claim", daemon.claim_body(*runtime_ids)))
    assert (first["status"], first["body"]) == (200, {"tasks": []})
    task_id = daemon.enqueue(daemon.agent(runtime_ids[0]))
    hint = socket.expect("daemon:task_available", runtime_id=runtime_ids[0])
    assert hint["task_id"] == task_id
    answer = socket.answer(socket.ask("tasks.claim", daemon.claim_body(*runtime_ids)))
    (task,) = answer["body"]["tasks"]
    assert (task["id"], task["runtime_id"], task["agent"]["id"]) == (task_id, runtime_ids[0], task["agent_id"])
    assert task["auth_token"].startswith("mat_")

    run(daemon, runtime_ids[0], task_id, {"claim_token": task["claim_token"]})
    socket.expect("daemon:task_available", runtime_id=runtime_ids[0])
    again = socket.answer(socket.ask("tasks.claim", daemon.claim_body(*runtime_ids)))
    assert again["body"] == {"tasks": []}
    assert sorted(daemon.post("deregister", {"runtime_ids": runtime_ids})["deregistered"]) == sorted(runtime_ids)


def run(daemon: Daemon, runtime_id: str, task_id: str, token: dict[str, str]) -> None:
    """What is sent about one task, with the claim token or without one."""
    query = f"?claim_token={token['claim_token']}" if token else ""

    def status() -> str:
        return str(daemon.get(f"tasks/{task_id}/status{query}")["status"])

    assert status() == "dispatched"
    daemon.post(f"runtimes/{runtime_id}/tasks/{task_id}/prepare-lease", token)
    daemon.post(f"tasks/{task_id}/start", token)
    daemon.post(f"tasks/{task_id}/progress", {**token, "summary": "Launching plain", "step": 1, "total": 2})
    daemon.post(f"tasks/{task_id}/session", {**token, "session_id": "s-1", "work_dir": "/w"})
    for seq in (1, 2):
        message = {"seq": seq, "type": "text", "content": f"part {seq}"}
        daemon.post(f"tasks/{task_id}/messages", {**token, "messages": [message]})
    assert status() == "running"
    usage = {"provider": "plain", "model": "m", "input_tokens": 3, "output_tokens": 4}
    daemon.post(f"tasks/{task_id}/usage", {**token, "usage": [usage]})
    daemon.post(f"tasks/{task_id}/progress", {**token, "summary": "Finishing task", "step": 2, "total": 2})
    for _ in range(2):  # a result whose answer was lost is sent again
        daemon.post(f"tasks/{task_id}/complete", {**token, "output": "all done", "branch_name": "b"})
    assert status() == "completed"
    row = daemon.task(task_id)
    assert (row["session_id"], row["work_dir"], row["branch_name"]) == ("s-1", "/w", "b")
    assert row["result"]["output"] == "all done"


def test_a_daemon_of_another_make_needs_no_token_and_no_socket(daemon: Daemon) -> None:
    """W-17, server half: the protocol as it is in the field, over HTTP alone, one runtime at a time."""
    (runtime_id,) = daemon.register("plain")
    agent_id = daemon.agent(runtime_id)
    assert daemon.post(f"runtimes/{runtime_id}/tasks/claim") == {"task": None}
    task_id = daemon.enqueue(agent_id)
    assert daemon.post("heartbeat", {"runtime_id": runtime_id, "supports_batch_import": True})["status"] == "ok"
    assert daemon.post(f"runtimes/{runtime_id}/tasks/claim")["task"]["id"] == task_id
    run(daemon, runtime_id, task_id, {})


def test_an_answer_that_fails_says_why_in_json(daemon: Daemon) -> None:
    for path, status in (("nope", 501), ("tasks/x/status", 404), ("register", 405)):
        with pytest.raises(ApiError) as refused:
            daemon.get(path)
        assert refused.value.status == status
        assert json.loads(refused.value.body)["error"]


def test_a_result_survives_the_loss_of_every_socket(daemon: Daemon) -> None:
    """W-16: the table is right whatever happens to the frames, and a client that reads again sees it."""
    (runtime_id,) = daemon.register("plain")
    agent_id = daemon.agent(runtime_id)
    for number in range(5):
        socket = connect(daemon, [runtime_id])
        task_id = daemon.enqueue(agent_id, title=f"Issue {number}")
        (task,) = daemon.post("tasks/claim", daemon.claim_body(runtime_id))["tasks"]
        token = {"claim_token": task["claim_token"]}
        daemon.post(f"tasks/{task_id}/start", token)
        # Cut without a goodbye, in the middle of everything.
        socket.connection.socket.close()
        daemon.post(f"tasks/{task_id}/complete", {**token, "output": str(number)})
        assert daemon.task(task_id)["status"] == "completed"
        assert daemon.get(f"tasks/{task_id}/status")["status"] == "completed"
        assert daemon.task(task_id)["result"]["output"] == str(number)
