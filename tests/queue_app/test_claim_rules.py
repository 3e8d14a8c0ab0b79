"""What a claim may give to whom: each predicate alone, the order, the turns, and what a delivery writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from queue_app import transitions
from queue_app.models import AgentTask
from queue_app.services.claim import claim
from tests.race.harness import Claimer
from tests.support import factories
from tests.support.lifecycle import DAEMON, Site, dispatch, failed, park, start

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def claimer() -> Iterator[Claimer]:
    with Claimer() as one:
        yield one


def test_only_the_runtime_that_the_task_was_made_for_gets_it(site: Site, claimer: Claimer) -> None:
    """C-02, C-03, Q-14: another machine gets nothing; once the agent has moved, neither the old nor the new one does.

    The row goes on naming the old machine until somebody moves it, or the agent comes back.
    """
    task = site.queued()
    other = factories.make_runtime(site.workspace)
    factories.make_agent(other)
    assert claimer.claim(other) == []
    site.agent.runtime = other
    site.agent.save()
    assert claimer.claim(other) == claimer.claim(site.runtime) == []
    assert AgentTask.objects.get(id=task.id).runtime_id == site.runtime.id
    site.agent.runtime = site.runtime
    site.agent.save()
    assert claimer.claim(site.runtime) == [task.id]


def test_no_state_but_queued_is_claimed(site: Site, claimer: Claimer) -> None:
    """C-04: rows in every other state stay where they are."""
    dispatch(site.queued())
    park(dispatch(site.queued(issue=site.more_issue())))
    start(dispatch(site.queued(issue=site.more_issue())))
    failed(start(dispatch(site.queued(issue=site.more_issue()))))
    transitions.cancel([site.queued(issue=site.more_issue()).id], actor="user:test")
    site.queued(issue=site.more_issue(), status="deferred", fire_at=datetime.now(UTC) + timedelta(hours=1))
    done = start(dispatch(site.queued(issue=site.more_issue())))
    transitions.complete(done.id, claim_token=done.claim_token, result={}, report=transitions.Report(), actor=DAEMON)
    assert Counter(AgentTask.objects.values_list("status", flat=True)) == Counter(
        ["dispatched", "waiting_local_directory", "running", "failed", "cancelled", "deferred", "completed"]
    )
    assert claimer.claim(site.runtime, most=32) == []


@pytest.mark.parametrize("state", ["dispatched", "waiting_local_directory", "running"])
def test_each_active_state_holds_its_key(site: Site, claimer: Claimer, state: str) -> None:
    """C-09: a sibling under the key of an active task is not given out, whichever of the three states it is in."""
    first = dispatch(site.queued(issue=None, serial_key="k"))
    if state != "dispatched":
        first = park(first) if state == "waiting_local_directory" else start(first)
    assert AgentTask.objects.get(id=first.id).status == state
    second = site.queued(issue=None, serial_key="k")
    other = site.queued(issue=None, serial_key="other")
    assert claimer.claim(site.runtime, most=32) == [other.id]
    failed(first)
    assert claimer.claim(site.runtime, most=32) == [second.id]


def test_equal_rows_come_in_the_order_of_their_ids(site: Site, claimer: Claimer) -> None:
    """C-12, C-13: priority, then age, then the UUIDv7, the same on every replica."""
    moment = datetime.now(UTC) - timedelta(minutes=1)
    values = [
        factories.task_values(site.agent, created_at=moment + timedelta(seconds=age), priority=priority)
        for priority in (1, 3, 1)
        for age in (5, 0, 0)
    ]
    made = transitions.enqueue(values, actor="user:test")
    expected = [row.id for row in sorted(made, key=lambda row: (-row.priority, row.created_at, row.id))]
    assert {row.id.version for row in made} == {7}
    taken = [claimer.claim(site.runtime)[0] for _ in range(6)]
    assert taken == expected[:6]


def test_a_delivery_writes_time_lease_and_token_together(site: Site, claimer: Claimer) -> None:
    """C-16, L-05: one statement stamps the dispatch and a lease 45 s from it, before any renewal."""
    site.queued()
    (wire,) = claimer.answer(site.runtime)["tasks"]
    row = AgentTask.objects.get(id=wire["id"])
    assert row.dispatched_at is not None and row.prepare_lease_expires_at is not None
    assert row.prepare_lease_expires_at - row.dispatched_at == timedelta(seconds=45)
    assert (str(row.claim_token), row.deliveries, row.lease_extensions) == (wire["claim_token"], 1, 0)
    event = row.events.get(verb="claim")
    assert (event.claim_token, event.at) == (row.claim_token, row.dispatched_at)


def test_no_backlog_starves_a_neighbour(site: Site, claimer: Claimer) -> None:
    """C-21: backlogs of 100, 5 and 5 and batches of 3. Bound: each runtime with work gets one of every batch."""
    runtimes = [factories.make_runtime(site.workspace, provider=f"p{n}") for n in range(3)]
    owner: dict[UUID, int] = {}
    for place, (runtime, size) in enumerate(zip(runtimes, (100, 5, 5), strict=True)):
        agent = factories.make_agent(runtime, max_concurrent_tasks=50)
        rows = transitions.enqueue([factories.task_values(agent) for _ in range(size)], actor="user:test")
        owner.update({row.id: place for row in rows})
    for _ in range(5):
        assert sorted(owner[task] for task in claimer.claim(*runtimes, most=3)) == [0, 1, 2]
    assert [owner[task] for task in claimer.claim(*runtimes, most=3)] == [0, 0, 0]


def test_a_claim_carries_what_was_frozen_at_enqueue(site: Site) -> None:
    """Q-16, Q-19: context and the overlay of tools are those of the enqueue, whatever the agent has now."""
    overlay = {"mcpServers": {"notes": {"command": "notes"}}}
    task = site.queued(runtime_mcp_overlay=overlay, context={"head_sha": "abc"})
    site.agent.mcp_config = {"mcpServers": {"later": {"command": "later"}}}
    site.agent.save()
    (wire,) = claim(
        site.caller,
        daemon_id=site.runtime.daemon_id,
        runtime_ids=[str(site.runtime.id)],
        max_tasks=1,
        timeout_ms=None,
        door="http",
    )
    assert wire["id"] == str(task.id)
    assert wire["agent"]["mcp_config"]["mcpServers"]["notes"] == {"command": "notes"}
    assert AgentTask.objects.get(id=task.id).context == {"head_sha": "abc"}
