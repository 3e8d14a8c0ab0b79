"""What may run beside what: serial keys and caps, kept by real processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.desk import Desk
from tests.support.stack import Api, ApiError
from tests.support.waits import until


def test_second_task_of_one_agent_and_issue_waits_for_the_first(desk: Desk) -> None:
    """C-06, C-11, RP-14, DUP-06: five more requests while the first runs make one follow-up, and it starts after it."""
    desk.daemon()
    agent = desk.agent()
    issue = desk.issue(agent)
    first = desk.hub.wait(desk.task_of(issue["id"]))
    desk.wait_status(first.task_id, "running")

    def ask(number: int) -> None:
        desk.api.post(f"/api/issues/{issue['id']}/comments", {"content": f"Please also do part {number}"})

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(ask, range(5)))
    waiting = [row for row in desk.tasks_of(issue["id"]) if str(row["id"]) != first.task_id]
    assert [row["status"] for row in waiting] == ["queued"], "one follow-up, behind the first"
    before = desk.claims()
    until(lambda: desk.claims() > before + 1, 8, "the daemon asks for work while the first runs")
    follow_up = str(waiting[0]["id"])
    assert desk.status(follow_up) == "queued"
    assert not desk.hub.of(follow_up)

    first.finish("first done")
    desk.wait_status(first.task_id, "completed")
    second = desk.hub.wait(follow_up)
    assert not first.alive
    assert all(f"part {number}" in second.hello["prompt"] for number in range(5)), "LOST-05: no request is lost"
    second.finish("second done")
    desk.wait_status(follow_up, "completed")


def test_never_more_agents_at_once_than_the_cap_allows(desk: Desk) -> None:
    """C-18, P-08: five issues, cap 2: two run, and each end lets exactly one more begin."""
    desk.daemon()
    agent = desk.agent(max_concurrent_tasks=2)
    tasks = [desk.task(agent) for _ in range(5)]
    for done in range(5):
        expected = min(done + 2, 5)
        until(lambda expected=expected: len(desk.hub.launches) == expected, 10, f"{expected} launches")
        working = [launch for launch in desk.hub.launches if not launch.gone.is_set()]
        assert len(working) <= 2
        states = [desk.status(task) for task in tasks]
        assert sum(state in ("dispatched", "running") for state in states) <= 2, states
        working[0].finish("done")
        desk.wait_status(working[0].task_id, "completed")
    # Two that are claimed together are launched in any order.
    assert {launch.task_id for launch in desk.hub.launches[:2]} == set(tasks[:2]), "the oldest first (C-12)"
    assert len(desk.hub.launches) == 5


def test_run_that_hands_its_issue_over_ends_as_it_was_and_the_other_agent_takes_it(desk: Desk) -> None:
    """C-10, Q-23, EX-02, CANCEL-07: a run reassigns its own issue with its own token; the token ends with the run."""
    desk.daemon()
    agent, other = desk.agent(), desk.agent()
    issue = desk.issue(agent)
    launch = desk.hub.wait(desk.task_of(issue["id"]))
    desk.wait_status(launch.task_id, "running")
    own = Api(desk.proxy.url, launch.env["MULTICA_TOKEN"])
    own.put(f"/api/issues/{issue['id']}", {"assignee_type": "agent", "assignee_id": other})
    rows = until(lambda: desk.tasks_of(issue["id"])[1:], what="a task for the other agent")
    assert [str(row["agent_id"]) for row in rows] == [other]
    second = desk.hub.wait(str(rows[0]["id"]))
    own.post(f"/api/issues/{issue['id']}/comments", {"content": "handed over"})
    launch.finish("my part is done")
    desk.wait_status(launch.task_id, "completed")
    notes = [comment for comment in desk.comments(issue["id"]) if comment["content"] == "handed over"]
    assert [(note["author_type"], note["author_id"]) for note in notes] == [("agent", agent)]
    with pytest.raises(ApiError) as refused:
        own.get("/api/me")
    assert refused.value.status == 401
    second.finish("the rest")
    desk.wait_status(second.task_id, "completed")
    assert len(desk.hub.launches) == 2
