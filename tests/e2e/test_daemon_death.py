"""The daemon's machine fails: killed, restarted, asleep, or there twice."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.e2e.desk import CLAUDE, PLAIN, Desk
from tests.support.proxy import Unit
from tests.support.stack import ApiError
from tests.support.waits import Stopwatch, always, until


def test_killed_daemon_takes_its_agent_along_and_the_next_one_runs_the_child(desk: Desk) -> None:
    """O-01, O-05, O-07, O-08, R-05, S-03, Q-08; RETRY-03 (a), RESUME-07: SIGKILL of the daemon while the agent runs."""
    daemon = desk.daemon()
    task, launch = desk.running(desk.agent(CLAUDE))
    until(lambda: desk.row(task)["session_id"], what="the session is pinned")
    launch.sh("echo kept > step1.txt")
    daemon.kill()
    assert launch.gone.wait(10), "the agent dies with its daemon"
    desk.wait_no_agents(daemon, 5)
    assert desk.status(task) == "running", "nobody has said yet what became of it"

    asked = len(desk.proxy.seen("/recover-orphans"))
    watch = Stopwatch()
    daemon.start()
    row = desk.wait_status(task, "failed")
    assert row["failure_reason"] == "runtime_recovery"
    (child,) = desk.children(task)
    second = desk.hub.wait(str(child["id"]), 10)
    assert watch.seconds < 10
    assert second.hello["resumed"] == f"session-{task}"
    assert second.sh("cat step1.txt").strip() == "kept"
    recovered = [unit.request.split("/")[4] for unit in desk.proxy.seen("/recover-orphans")[asked:]]
    assert sorted(recovered) == sorted({desk.runtime(PLAIN), desk.runtime(CLAUDE)}), "each runtime once"
    second.finish("finished by the second")
    ended = desk.wait_status(second.task_id, "completed")
    assert (ended["attempt"], ended["deliveries"]) == (2, 1)
    assert len(desk.hub.of(task)) == 1
    assert len(desk.hub.launches) == 2
    assert desk.row(task)["status"] == "failed"


def test_result_made_while_the_server_was_away_arrives_after_a_restart(desk: Desk) -> None:
    """LOST-01, RP-05, W-16 and design D10: no server when the agent ends, and the daemon is
    killed and started again meanwhile."""
    daemon = desk.daemon()
    agent = desk.agent(CLAUDE)
    task, launch = desk.running(agent)
    desk.proxy.down()
    launch.finish("R-42")
    assert launch.gone.wait(10)
    outbox = daemon.home / ".multica" / "outbox"
    until(lambda: list(outbox.glob("*.json")), what="the ending is on disk")
    daemon.kill()
    daemon.start()
    # Long enough for several tries of the new process, which must neither give up nor end the task.
    always(lambda: daemon.alive and desk.status(task) == "running", 1.5, "the task waits for its result")

    desk.proxy.up()
    row = desk.wait_status(task, "completed", seconds=15)
    assert row["result"]["output"] == "R-42"
    assert row["session_id"] == f"session-{task}"
    daemon.wait_ready()
    assert desk.children(task) == []
    until(lambda: not list(outbox.glob("*.json")), what="the outbox is empty")
    following, next_launch = desk.running(agent)
    next_launch.finish("next")
    desk.wait_status(following, "completed")
    assert len(desk.hub.of(task)) == 1, "nothing ran again"


def test_true_result_survives_a_sleep_longer_than_the_freshness(desk: Desk) -> None:
    """L-17 with design D3c, C-05, L-25: a laptop that sleeps keeps its task; its runtime is offline
    meanwhile and gets nothing."""
    daemon = desk.daemon()
    agent = desk.agent()
    task, launch = desk.running(agent)
    asleep = daemon.agents()
    daemon.freeze()
    for each in asleep:
        each.suspend()
    runtime = desk.runtime()
    until(lambda: runtime_status(desk, runtime) == "offline", 20, "the runtime is seen to be away")
    waiting = desk.task(agent)
    assert desk.status(task) == "running"

    for each in asleep:
        each.resume()
    daemon.thaw()
    launch.finish("slept well")
    row = desk.wait_status(task, "completed")
    assert "slept well" in row["result"]["output"]
    until(lambda: runtime_status(desk, runtime) == "online", 10, "the runtime is back")
    second = desk.hub.wait(waiting)
    second.finish("and on")
    desk.wait_status(waiting, "completed")
    assert desk.children(task) == []
    assert len(desk.hub.of(task)) == 1


def runtime_status(desk: Desk, runtime_id: str) -> Any:
    return desk.site.query("SELECT status FROM agent_runtime WHERE id = %s", runtime_id)[0]["status"]


def test_old_delivery_can_neither_start_nor_fail_the_new_one(desk: Desk) -> None:
    """L-09, L-10, L-11, T-01, DUP-10: two processes with one state; the calls of the first delivery arrive when the
    second one is at work."""
    old_path = desk.second_proxy()
    old = desk.prepare_daemon(name="old", proxy=old_path)
    old.start()
    old.wait_ready()
    new = desk.prepare_daemon(name="new")
    shutil.copytree(old.home / ".multica", new.home / ".multica", dirs_exist_ok=True, ignore=only_identity)
    new.start()
    new.wait_ready()
    new.freeze()

    taken = old_path.trap(lambda unit: unit.down and answers_claim(unit), hold=True)
    task = desk.task(desk.agent())
    taken.wait()
    first = desk.row(task)
    assert (first["status"], first["deliveries"]) == ("dispatched", 1)
    new.thaw()
    launch = desk.hub.wait(task, 20)
    second = desk.wait_status(task, "running")
    assert second["deliveries"] == 2
    assert second["attempt"] == 1
    assert second["claim_token"] != first["claim_token"]

    old_path.release()
    refused = "SELECT verb, code FROM late_write WHERE task_id = %s AND claim_token = %s"
    late = until(
        lambda: [each for each in desk.site.query(refused, task, first["claim_token"]) if each["verb"] == "start"],
        15,
        "the old delivery's start arrives and is kept as refused",
    )
    assert late[0]["code"] == "start_claim_rejected"
    for verb in ("fail", "complete"):  # what an old daemon that does not know the refusal would say now
        body = {"claim_token": str(first["claim_token"]), "error": "gone wrong", "output": "old"}
        with pytest.raises(ApiError) as answer:
            desk.api.post(f"/api/daemon/tasks/{task}/{verb}", body)
        assert answer.value.status == 409
    assert not old_path.seen(f"/tasks/{task}/fail"), "our own daemon says nothing more"
    always(lambda: desk.status(task) == "running" and launch.alive, 1.0, "the new delivery goes on")
    assert str(new.root) in launch.hello["cwd"]
    launch.finish("by the new one")
    row = desk.wait_status(task, "completed")
    assert "by the new one" in row["result"]["output"]
    assert len(desk.hub.of(task)) == 1
    assert desk.children(task) == []


def answers_claim(unit: Unit) -> bool:
    """A claim's answer that brings a task, over either door."""
    about_claim = "daemon:rpc_response" in unit.text if unit.websocket else "/tasks/claim" in unit.request
    return about_claim and '"claim_token"' in unit.text


def only_identity(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name != "daemon.id"] if folder.endswith(".multica") else []
