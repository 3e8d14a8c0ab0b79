"""Cancel: the row at once, the process tree within the poll, the evidence kept."""

from __future__ import annotations

from tests.e2e.desk import CLAUDE, Desk, alive
from tests.e2e.hub import Launch
from tests.support.stack import Daemon
from tests.support.waits import Stopwatch, until

# Seconds of wall time: the status poll of 5 s plus a margin, and the grace that the daemon is given here.
POLL, GRACE, MARGIN = 6.0, 2.0, 2.0


def unscaled(desk: Desk) -> Daemon:
    """A daemon that polls the status every 5 real seconds; only its heartbeats keep the server's pace."""
    return desk.daemon(
        scale=1.0,
        MULTICA_DAEMON_HEARTBEAT_INTERVAL="700ms",
        MULTICA_DAEMON_POLL_INTERVAL="2s",
        MULTICA_AGENT_STOP_GRACE=f"{GRACE:g}s",
    )


def tree(launch: Launch) -> list[int]:
    """The agent and its guard: everything of this task that runs now."""
    assert launch.process is not None
    return [launch.pid, launch.process.ppid()]


def test_cancel_ends_the_whole_tree_in_time_and_keeps_the_evidence(desk: Desk) -> None:
    """X-01, X-02, X-04, X-05, X-06, X-07, X-14, X-15, X-17, RP-07; CANCEL-01, CANCEL-03, FAIR-05, PROC-01, PROC-03.

    Four agents at once: one that obeys, one that uses its grace to tidy up, one that ignores SIGTERM, one that hides a
    child with setsid and a double fork. Real seconds, default status poll.
    """
    daemon = unscaled(desk)
    agent = desk.agent(CLAUDE)
    runs = [desk.running(agent) for _ in range(4)]
    obedient, tidy, stubborn, hider = (launch for _, launch in runs)
    for launch in (obedient, tidy, stubborn, hider):
        launch.say("before the stop")
    note = daemon.root / "tidied"
    tidy.do("note_term", path=str(note))
    stubborn.do("ignore_term")
    hidden = hider.do("hide_child")["pid"]
    assert alive([hidden]) == [hidden]
    trees = {launch.task_id: tree(launch) for launch in (obedient, tidy, stubborn, hider)}
    trees[hider.task_id].append(hidden)

    watch = Stopwatch()
    for task, _ in runs:
        desk.api.post(f"/api/tasks/{task}/cancel")
        assert desk.status(task) == "cancelled"
    assert watch.seconds < 4 * 1.0
    until(lambda: not alive(trees[obedient.task_id]), POLL, "the obedient one is gone")
    assert watch.seconds < POLL + MARGIN
    rest = [pid for task, pids in trees.items() if task != obedient.task_id for pid in pids]
    until(lambda: not alive(rest), POLL + GRACE + 1.0 - watch.seconds, "the others are gone after their grace")
    assert note.read_text() == "tidied", "the grace was granted"
    desk.wait_no_agents(daemon, 3)

    for task, _ in runs:
        row = until(lambda task=task: stopped(desk, task), 10, "the cancel is acknowledged")
        assert row["status"] == "cancelled"
        assert row["result"] is None
        assert "before the stop" in desk.said(task)
        usage = desk.site.query("SELECT input_tokens FROM task_usage WHERE task_id = %s", task)
        assert [one["input_tokens"] for one in usage] == [11]
        assert len(desk.hub.of(task)) == 1
        assert desk.children(task) == []
    follow_up, launch = desk.running(agent)  # slots on both sides are free again
    launch.finish("next")
    desk.wait_status(follow_up, "completed")


def stopped(desk: Desk, task: str) -> dict[str, object] | None:
    row = desk.row(task)
    return row if row["stopped_at"] and row["stop_pending_since"] is None else None


def test_nothing_of_the_key_starts_while_the_cancelled_process_may_live(desk: Desk) -> None:
    """X-14 and design D3 (the old process counts): the successor stays in the queue until the process has ended."""
    desk.daemon(MULTICA_AGENT_STOP_GRACE="30s")
    agent = desk.agent()
    issue = desk.issue(agent)
    first = desk.hub.wait(desk.task_of(issue["id"]))
    desk.wait_status(first.task_id, "running")
    first.do("ignore_term")
    desk.api.post(f"/api/tasks/{first.task_id}/cancel")
    desk.api.post(f"/api/issues/{issue['id']}/comments", {"content": "Try it another way"})
    rows = until(lambda: desk.tasks_of(issue["id"])[1:], what="the successor is queued")
    successor = str(rows[0]["id"])
    seen = set()

    def ended() -> bool:
        state = desk.status(successor)  # before the look at the process: what was claimed then was claimed too early
        seen.add((state, first.alive))
        return first.gone.is_set()

    until(ended, 15, "the cancelled process is gone")
    assert {state for state, lives in seen if lives} == {"queued"}, seen
    second = desk.hub.wait(successor, 15)
    second.finish("another way")
    desk.wait_status(successor, "completed")


def test_deleted_issue_stops_its_agent(desk: Desk) -> None:
    """X-08, CANCEL-05 (a): the row is gone, the daemon hears `task not found` and stops."""
    daemon = desk.daemon()
    issue = desk.issue(desk.agent())
    launch = desk.hub.wait(desk.task_of(issue["id"]))
    desk.wait_status(launch.task_id, "running")
    desk.api.call("DELETE", f"/api/issues/{issue['id']}")
    assert launch.gone.wait(5)
    desk.wait_no_agents(daemon)
