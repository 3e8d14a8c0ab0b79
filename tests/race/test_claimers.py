"""Claimers that meet on real connections: nothing twice, no cap exceeded, one at a time under a key."""

from __future__ import annotations

import threading
from collections import Counter
from uuid import UUID

import pytest
from psycopg.errors import LockNotAvailable, UniqueViolation

from queue_app import transitions
from queue_app.models import Agent, AgentRuntime, AgentTask, TaskEvent, TaskToken
from tests.race.harness import Claimer, started, together, waits_for_a_lock, without
from tests.support import factories as make
from tests.support.wait import until

pytestmark = pytest.mark.django_db(transaction=True)

AGENT_LOCK = "PERFORM 1 FROM agent a WHERE a.id = ANY(v_pair_agents) ORDER BY a.id FOR NO KEY UPDATE;"
AGENTS_READ = "    JOIN agent a ON a.id = q.agent_id\n    LEFT JOIN (SELECT x.agent_id, count(*)"
LOCK_INSIDE = AGENTS_READ.replace(
    "JOIN agent a ON",
    "JOIN (SELECT * FROM agent l WHERE l.id = ANY(v_pair_agents) ORDER BY l.id FOR NO KEY UPDATE) a ON",
)
ROW_LOCK = "     FOR NO KEY UPDATE SKIP LOCKED\n)\nSELECT coalesce(array_agg(c.id ORDER BY c.place)"
ROW_UNLOCKED = ROW_LOCK.replace("     FOR NO KEY UPDATE SKIP LOCKED\n", "")


def fill(agent: Agent, count: int, **fields: object) -> list[AgentTask]:
    """Queued rows without a key."""
    return transitions.enqueue([make.task_values(agent, **fields) for _ in range(count)], actor="user:test")


def active(agent: Agent) -> int:
    return AgentTask.objects.filter(
        agent=agent, status__in=["dispatched", "waiting_local_directory", "running"]
    ).count()


@pytest.fixture
def runtime() -> AgentRuntime:
    return make.make_runtime(make.make_workspace())


def test_fifty_claimers_take_a_thousand_tasks_each_once(runtime: AgentRuntime) -> None:
    """C-01, C-20: N rows and 50 parallel claimers; every row is delivered by exactly one answer, N in all.

    Claimers of one agent take turns at its row already; what the lock on the rows adds is proved below.
    """
    for _ in range(20):
        fill(make.make_agent(runtime, max_concurrent_tasks=50), 50)

    def drain(_: int) -> list[UUID]:
        taken: list[UUID] = []
        with Claimer() as claimer:
            while batch := claimer.claim(runtime, most=7):
                taken += batch
        return taken

    taken = [task_id for share in together(50, drain) for task_id in share]
    assert len(taken) == 1000
    assert set(Counter(taken).values()) == {1}
    assert TaskEvent.objects.filter(verb="claim").count() == 1000
    assert set(AgentTask.objects.values_list("deliveries", flat=True)) == {1}
    assert TaskToken.objects.count() == 1000


def test_one_row_meets_the_chain_of_its_events_without_both_locks(runtime: AgentRuntime) -> None:
    """C-01, C-14: the proof for the locks on agent and row: two claims choose one row, and only the unique number of
    its next event stands between it and a second delivery, at the cost of the whole batch.
    """
    agent = make.make_agent(runtime, max_concurrent_tasks=50)
    fill(agent, 3)
    guards = (AGENT_LOCK, ""), (ROW_LOCK, ROW_UNLOCKED)
    with without(*guards) as function, pytest.raises(UniqueViolation, match="uq_task_event_seq"):
        overtaken(agent, most=4, function=function)


@pytest.mark.parametrize("cap", [1, 2])
def test_twenty_claimers_never_exceed_the_cap(runtime: AgentRuntime, cap: int) -> None:
    """C-06, C-18: five tasks on five issues, 20 claimers at once: never more active than the cap, and exactly it."""
    agent = make.make_agent(runtime, max_concurrent_tasks=cap)
    for _ in range(5):
        make.enqueue(agent, make.make_issue(runtime.workspace))

    def once(_: int) -> list[UUID]:
        with Claimer() as claimer:
            return claimer.claim(runtime, most=5)

    taken = [task_id for share in together(20, once) for task_id in share]
    assert len(taken) == len(set(taken)) == active(agent) == cap


def overtaken(agent: Agent, most: int, function: str = "claim_tasks") -> tuple[list[UUID], list[UUID]]:
    """The forced case. The second claim has looked and waits for the agent while the first commits; what each got.

    An urgent row comes in between, so the two do not meet on the same row. A copy of the function that takes no lock
    does not wait: then the first commits after the second has ended.
    """
    runtime = agent.runtime
    assert runtime is not None
    with Claimer(autocommit=False, function=function) as first, Claimer(function=function) as second:
        mine = first.claim(runtime, most=most)
        fill(agent, 1, priority=4, serial_key="quick-create")
        theirs = started(lambda: second.claim(runtime, most=most))
        ended = threading.Event()
        waiter = started(lambda: (theirs(), ended.set())[0])
        until(lambda: ended.is_set() or waits_for_a_lock(second.pid), what="the second claim to wait or to end")
        first.connection.commit()
        return mine, waiter()


@pytest.mark.parametrize("cap", [1, 2])
def test_a_claim_that_was_overtaken_counts_again(runtime: AgentRuntime, cap: int) -> None:
    """C-18: one claim commits between another's snapshot and its lock; the cap holds."""
    agent = make.make_agent(runtime, max_concurrent_tasks=cap)
    fill(agent, 6)
    mine, theirs = overtaken(agent, most=4)
    assert (len(mine), len(theirs)) == (cap, 0)
    assert active(agent) == cap


@pytest.mark.parametrize(
    "guards",
    [
        pytest.param([(AGENT_LOCK, "")], id="no-lock"),
        pytest.param([(AGENT_LOCK, ""), (AGENTS_READ, LOCK_INSIDE)], id="lock-inside-the-count"),
    ],
)
def test_the_forced_case_breaks_the_cap_without_the_guard(runtime: AgentRuntime, guards: list[tuple[str, str]]) -> None:
    """C-18: the proof that the lock has to be there, and in a statement before the count."""
    agent = make.make_agent(runtime, max_concurrent_tasks=1)
    fill(agent, 6)
    with without(*guards) as function:
        overtaken(agent, most=4, function=function)
    assert active(agent) > 1


def test_two_tasks_under_one_key_meet_twenty_claimers(runtime: AgentRuntime) -> None:
    """C-06, C-08: two queued rows of one key without an issue; one is taken, the other waits for its end."""
    agent = make.make_agent(runtime)
    fill(agent, 2, serial_key="quick-create")

    def once(_: int) -> list[UUID]:
        with Claimer() as claimer:
            return claimer.claim(runtime, most=2)

    taken = [task_id for share in together(20, once) for task_id in share]
    assert len(taken) == active(agent) == 1


def test_a_claim_that_was_overtaken_sees_the_taken_key(runtime: AgentRuntime) -> None:
    """C-06: the forced case for a key: the second claim takes no row of it, but one of another key."""
    agent = make.make_agent(runtime)
    fill(agent, 2, serial_key="quick-create")
    mine, theirs = overtaken(agent, most=4)
    assert (len(mine), len(theirs)) == (1, 0)


def test_the_forced_case_meets_the_index_without_the_guard(runtime: AgentRuntime) -> None:
    """C-06: without the lock only the unique index stands between two tasks of one key, at the cost of the batch."""
    agent = make.make_agent(runtime)
    fill(agent, 1, serial_key="quick-create")
    fill(agent, 1)
    with without((AGENT_LOCK, "")) as function, pytest.raises(UniqueViolation):
        overtaken(agent, most=4, function=function)


def test_a_row_that_somebody_holds_is_stepped_over_at_once(runtime: AgentRuntime) -> None:
    """C-14: with a lock on the best candidate the next eligible row comes back, though the cap leaves room for one.

    Seen red with `v_skip` left empty: the held row filled the window of one and the claim came back with nothing.
    """
    agent = make.make_agent(runtime, max_concurrent_tasks=1)
    rows = [make.enqueue(agent, make.make_issue(runtime.workspace)) for _ in range(3)]
    with Claimer(autocommit=False) as holder, Claimer() as claimer:
        holder.connection.execute("SELECT 1 FROM agent_task_queue WHERE id = %s FOR UPDATE", [rows[0].id])
        claimer.connection.execute("SET lock_timeout = '100ms'")
        assert claimer.claim(runtime, most=2) == [rows[1].id]


def test_many_held_rows_hide_no_free_one(runtime: AgentRuntime) -> None:
    """C-14, D7: a bulk change that holds 700 rows in front leaves the free one behind them to the claim."""
    agent = make.make_agent(runtime, max_concurrent_tasks=1)
    held = fill(agent, 700)
    (free,) = fill(agent, 1)
    with Claimer(autocommit=False) as holder, Claimer() as claimer:
        holder.connection.execute(
            "SELECT 1 FROM agent_task_queue WHERE id = ANY(%s) FOR UPDATE", [[row.id for row in held]]
        )
        assert claimer.claim(runtime, most=2) == [free.id]


def test_one_claim_holds_one_row(runtime: AgentRuntime) -> None:
    """C-15: while a claim of one is open, every other row can be locked by somebody else."""
    agent = make.make_agent(runtime, max_concurrent_tasks=3)
    rows = fill(agent, 10)
    with Claimer(autocommit=False) as claimer, Claimer() as other:
        (taken,) = claimer.claim(runtime, most=1)
        free = other.connection.execute("SELECT id FROM agent_task_queue FOR UPDATE SKIP LOCKED").fetchall()
    assert {row[0] for row in free} == {row.id for row in rows} - {taken}


def test_a_claimer_waits_for_an_agent_no_longer_than_its_lock_timeout(runtime: AgentRuntime) -> None:
    """D19: an agent row that somebody keeps locked costs a claim its bounded wait, and nothing is taken."""
    agent = make.make_agent(runtime)
    fill(agent, 1)
    with Claimer(autocommit=False) as holder, Claimer() as claimer:
        holder.connection.execute("SELECT 1 FROM agent WHERE id = %s FOR UPDATE", [agent.id])
        claimer.connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(LockNotAvailable):
            claimer.claim(runtime)
    assert active(agent) == 0


def test_claims_of_the_same_agents_in_any_order_do_not_lock_each_other_out(runtime: AgentRuntime) -> None:
    """C-20: agents are locked in one order, so claimers that share them never meet in a deadlock."""
    other = make.make_runtime(runtime.workspace, name="Other", provider="claude")
    for place in (runtime, other):
        for _ in range(8):
            fill(make.make_agent(place, max_concurrent_tasks=50), 40)

    def drain(number: int) -> int:
        places = (runtime, other) if number % 2 else (other, runtime)
        count = 0
        with Claimer() as claimer:
            while batch := claimer.claim(*places, most=5):
                count += len(batch)
        return count

    assert sum(together(8, drain)) == 640


def test_a_key_taken_behind_the_guard_costs_its_row_alone(runtime: AgentRuntime) -> None:
    """D5: a writer outside the guard takes a key during the claim; one by one, the rest of the batch is delivered."""
    agent = make.make_agent(runtime)
    (taken,) = fill(agent, 1, serial_key="chat:x")
    (beside,) = fill(agent, 1, serial_key="chat:y")
    (blocked,) = fill(agent, 1, serial_key="elsewhere")
    with Claimer(autocommit=False) as outsider, Claimer() as claimer:
        outsider.connection.execute(
            "UPDATE agent_task_queue SET status = 'dispatched', claim_token = gen_random_uuid(), dispatched_at = now(),"
            " prepare_lease_expires_at = now(), serial_key = 'chat:x' WHERE id = %s",
            [blocked.id],
        )
        answer = started(lambda: claimer.claim(runtime, most=5, one_by_one=True))
        until(lambda: waits_for_a_lock(claimer.pid), what="the claim to meet the index")
        outsider.connection.commit()
        assert answer() == [beside.id]
    taken.refresh_from_db()
    assert taken.status == "queued"


def test_a_cancel_meets_a_claim_a_thousand_times(runtime: AgentRuntime) -> None:
    """C-17: whichever comes first wins: a claimed row was cancelled as dispatched, any other was never in an answer."""
    agent = make.make_agent(runtime, max_concurrent_tasks=50)
    rounds = [fill(agent, 10) for _ in range(1)]
    turn = threading.Barrier(2)
    claimed: list[set[UUID]] = []

    def claims() -> None:
        with Claimer() as claimer:
            for _ in range(100):
                turn.wait(30)
                claimed.append(set(claimer.claim(runtime, most=4)) | set(claimer.claim(runtime, most=10)))
                turn.wait(30)

    done = started(claims)
    seen = Counter[str]()
    for number in range(100):
        rows = rounds[number]
        turn.wait(30)
        moved = {row.id: transitions.cancel([row.id], actor="user:test")[0].from_status for row in reversed(rows)}
        turn.wait(30)
        expected = {row.id: "dispatched" if row.id in claimed[number] else "queued" for row in rows}
        assert moved == expected
        seen.update(expected.values())
        rounds.append(fill(agent, 10))
    done()
    assert sum(seen.values()) == 1000
    assert len(seen) == 2, f"the two never met in both orders: {seen}"
