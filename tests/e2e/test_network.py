"""The path between daemon and server fails."""

from __future__ import annotations

import pytest

from tests.e2e.desk import Desk
from tests.e2e.test_daemon_death import answers_claim
from tests.support.stack import SCALE
from tests.support.waits import Stopwatch, until

# Product seconds in which a daemon with an uncertain claim asks for nothing (W-10).
UNCERTAIN_WINDOW = 7.0


@pytest.mark.parametrize("door", ["ws", "http"])
def test_claim_whose_answer_was_lost_runs_once(desk: Desk, door: str) -> None:
    """C-25, C-26, L-08, T-01, W-09, W-10, W-11; DUP-04, STUCK-01: committed by the server, cut before the answer.

    One slot. The lost task comes back after the recovery window, with the same attempt, and never as a failure.
    """
    socket = "on" if door == "ws" else "off"
    desk.daemon(MULTICA_DAEMON_MAX_CONCURRENT_TASKS="1", MULTICA_DAEMON_WEBSOCKET=socket)
    agent = desk.agent()
    trap = desk.proxy.trap(lambda unit: unit.down and answers_claim(unit))
    first = desk.task(agent)
    caught = trap.wait()
    assert caught.websocket == (door == "ws")
    row = desk.row(first)
    assert (row["status"], row["deliveries"]) == ("dispatched", 1)
    second = desk.task(agent)

    other = desk.hub.wait(second)
    if door == "ws":
        window = caught.at, caught.at + UNCERTAIN_WINDOW * SCALE
        asked = [unit.at for unit in desk.proxy.units if not unit.down and "/tasks/claim" in unit.text]
        asked += [unit.at for unit in desk.proxy.seen("tasks.claim") if unit.websocket]
        assert not [at for at in asked if window[0] < at < window[1]], "a claim inside the uncertain window"
    assert not desk.hub.of(first)
    other.finish("second")
    desk.wait_status(second, "completed")

    launch = desk.hub.wait(first, 12)
    assert other.gone.is_set(), "never two at once in one slot"
    row = desk.wait_status(first, "running")
    assert (row["deliveries"], row["attempt"]) == (2, 1)
    launch.finish("first")
    desk.wait_status(first, "completed")
    assert len(desk.hub.launches) == 2
    assert "redeliver" in desk.events(first)


def test_everything_works_without_the_websocket(desk: Desk) -> None:
    """W-07, W-17; user report "no upgrade": the handshake is refused; claims, cancel, results go over HTTP."""
    desk.proxy.refuse_websocket = True
    daemon = desk.daemon()
    agent = desk.agent()
    task, launch = desk.running(agent)
    launch.say("over HTTP")
    until(lambda: "over HTTP" in desk.said(task))
    launch.finish("done over HTTP")
    desk.wait_status(task, "completed")

    cancelled, stopped = desk.running(agent)
    desk.api.post(f"/api/tasks/{cancelled}/cancel")
    assert stopped.gone.wait(10)
    until(lambda: desk.row(cancelled)["stopped_at"], what="the stop is acknowledged")
    assert not desk.proxy.seen('tasks.claim"')
    assert desk.proxy.seen("POST /api/daemon/heartbeat")
    warnings = [line for line in daemon.text().splitlines() if "WARNING" in line and "socket" in line]
    assert len(warnings) <= 2, warnings


def test_half_open_socket_is_noticed_and_work_goes_on(desk: Desk) -> None:
    """User report "half-open": packets of the established connections vanish, new connections work."""
    desk.daemon()
    agent = desk.agent()
    handshakes = len(desk.proxy.seen("GET /api/daemon/ws"))
    desk.proxy.hold_present()
    watch = Stopwatch()
    task, launch = desk.running(agent)
    assert watch.seconds < 12
    until(lambda: len(desk.proxy.seen("GET /api/daemon/ws")) > handshakes, 15, "the dead socket is replaced")
    launch.finish("done")
    desk.wait_status(task, "completed")


def test_server_errors_on_the_status_poll_do_not_stop_an_agent(desk: Desk) -> None:
    """X-09, CANCEL-05 (b): the way to the server is cut again and again while the agent works."""
    desk.daemon()
    task, launch = desk.running(desk.agent())
    for _ in range(5):
        trap = desk.proxy.trap(lambda unit: unit.down and f"/tasks/{task}/status" in unit.request)
        trap.wait()
    assert launch.alive
    assert desk.status(task) == "running"
    launch.finish("undisturbed")
    desk.wait_status(task, "completed")
