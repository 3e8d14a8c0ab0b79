"""Random worlds: whatever happened before, a claim leaves nothing behind that it could have given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from psycopg.errors import UniqueViolation

from queue_app import auth, empty_claims, transitions
from queue_app.models import Agent, AgentRuntime, AgentTask
from queue_app.services.claim import claim
from queue_app.sql import door
from tests.race.harness import Claimer, started, without
from tests.support import factories
from tests.support.lifecycle import DAEMON
from tests.support.wait import until

pytestmark = pytest.mark.django_db(transaction=True)

BLOCKED = 10_000
CLAIMABLE = """
SELECT count(*) FROM agent_task_queue q JOIN agent a ON a.id = q.agent_id
 WHERE q.status = 'queued' AND q.agent_id = ANY(%s)
   AND a.max_concurrent_tasks > (SELECT count(*) FROM agent_task_queue o WHERE o.agent_id = a.id
         AND o.status IN ('dispatched', 'waiting_local_directory', 'running'))
   AND NOT EXISTS (SELECT 1 FROM agent_task_queue o WHERE o.agent_id = a.id AND o.serial_key = q.serial_key
         AND (o.status IN ('dispatched', 'waiting_local_directory', 'running') OR o.stop_pending_since IS NOT NULL))
"""
"""The rules once more, written apart from the claim."""


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"


def block(runtime: AgentRuntime) -> Agent:
    """An agent with room for three, and ten thousand urgent rows in its queue under the key of a task that it runs.

    Other rows of the same agent and runtime stand behind them: only a claim that looks past its window meets those.
    """
    agent = factories.make_agent(runtime, max_concurrent_tasks=4)
    values = factories.task_values(agent, serial_key="blocked", priority=4)
    (first,) = transitions.enqueue([values], actor="user:test")
    with Claimer() as claimer:
        assert claimer.claim(runtime) == [first.id]
    first.refresh_from_db()
    assert transitions.start(first.id, claim_token=first.claim_token, actor=DAEMON)
    for _ in range(BLOCKED // 1000):
        transitions.enqueue([values] * 1000, actor="user:test")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE agent_task_queue")
    return agent


def machine(crowd: Agent, quiet: AgentRuntime, function: str = "claim_tasks") -> type[RuleBasedStateMachine]:
    """The state machine over two runtimes: one with the blocked rows in front, one where emptiness is possible.

    `function` names another claim function, for the proof that the machine finds what is wrong with it.
    """
    caller = auth.for_user(factories.owner_of(quiet.workspace))
    crowded = AgentRuntime.objects.get(agents=crowd)

    class World(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            fresh = [(crowded, 1), (quiet, 1), (quiet, 3)]
            self.agents = [crowd, *(factories.make_agent(place, max_concurrent_tasks=cap) for place, cap in fresh)]
            self.claimer = Claimer(function=function)
            self.later = datetime.now(UTC)

        def teardown(self) -> None:
            try:
                self.last_round()
            finally:
                self.clear()
                self.claimer.connection.close()

        def clear(self) -> None:
            rows = self.rows("queued", "dispatched", "running")
            for row in transitions.cancel([row.id for row in rows], actor="user:test"):
                transitions.release_hold([row.id], reason="end", actor=DAEMON)

        def last_round(self) -> None:
            """What every world ends with, so that no luck is needed to find a claim that is wrong by itself."""
            self.clear()
            self.enqueue_during_a_look()
            self.a_verdict_is_true()
            for agent in range(4):
                self.enqueue(agent, "a", 1, 2)
                self.enqueue(agent, None, 0, 4)
            self.claim(32)
            self.caps_and_keys_hold()
            self.claim_through_the_cache(3, crowded_too=True)
            self.a_verdict_is_true()

        def rows(self, *states: str) -> list[AgentTask]:
            mine = AgentTask.objects.filter(agent__in=self.agents, status__in=states)
            return list(mine.exclude(serial_key="blocked").order_by("created_at", "id"))

        def one(self, data: Any, *states: str) -> AgentTask | None:
            rows = self.rows(*states)
            return data.draw(st.sampled_from(rows)) if rows else None

        def claimable(self, agents: list[Agent]) -> int:
            with connection.cursor() as cursor:
                cursor.execute(CLAIMABLE, [[agent.id for agent in agents]])
                return int(cursor.fetchone()[0])

        @rule(
            agent=st.integers(0, 3),
            key=st.sampled_from([None, "a", "b"]),
            priority=st.integers(0, 4),
            count=st.integers(1, 4),
        )
        def enqueue(self, agent: int, key: str | None, priority: int, count: int) -> None:
            values = factories.task_values(self.agents[agent], serial_key=key, priority=priority)
            transitions.enqueue([values] * count, actor="user:test")
            empty_claims.bump([str(self.agents[agent].runtime_id)])

        @rule(most=st.integers(1, 6))
        def claim(self, most: int) -> None:
            taken = self.claimer.claim(crowded, quiet, most=most, freshness=10**9)
            if len(taken) < most:
                assert self.claimable(self.agents) == 0

        def through_the_cache(self, most: int, *places: AgentRuntime) -> int:
            ids = [str(place.id) for place in places]
            return len(claim(caller, daemon_id="one", runtime_ids=ids, max_tasks=most, timeout_ms=None, door="http"))

        @rule(most=st.integers(1, 3), crowded_too=st.booleans())
        def claim_through_the_cache(self, most: int, crowded_too: bool) -> None:
            places, agents = ((crowded, quiet), self.agents) if crowded_too else ((quiet,), self.agents[2:])
            if self.through_the_cache(most, *places) < most:
                assert self.claimable(agents) == 0, "hidden by a verdict"

        @rule()
        def enqueue_during_a_look(self) -> None:
            """A claim has seen who has work and waits for an agent; then a row comes for a runtime without any."""
            with Claimer(autocommit=False) as holder:
                holder.connection.execute("SELECT 1 FROM agent WHERE id = %s FOR UPDATE", [crowd.id])
                look = started(lambda: self.through_the_cache(1, crowded, quiet))
                until(self.claim_waits, what="the claim to wait for the agent")
                self.enqueue(2, None, 0, 1)
            look()

        def claim_waits(self) -> bool:
            with connection.cursor() as cursor:
                cursor.execute(WAITING, [door.NAME])
                return bool(cursor.fetchone()[0])

        @rule(data=st.data())
        def start(self, data: Any) -> None:
            if row := self.one(data, "dispatched"):
                assert transitions.start(row.id, claim_token=row.claim_token, actor=DAEMON)

        @rule(data=st.data(), good=st.booleans())
        def end(self, data: Any, good: bool) -> None:
            if row := self.one(data, "running"):
                token = row.claim_token
                if good:
                    report = transitions.Report()
                    assert transitions.complete(row.id, claim_token=token, result={}, report=report, actor=DAEMON)
                else:
                    assert transitions.fail(row.id, claim_token=token, reason="timeout", error="x", actor=DAEMON)

        @rule(data=st.data(), confirmed=st.booleans())
        def cancel(self, data: Any, confirmed: bool) -> None:
            if row := self.one(data, "queued", "dispatched", "running"):
                assert transitions.cancel([row.id], actor="user:test")
                if confirmed:
                    transitions.confirm_stop(row.id, claim_token=None, actor=DAEMON)

        @rule(data=st.data())
        def redeliver(self, data: Any) -> None:
            if row := self.one(data, "dispatched"):
                assert row.dispatched_at is not None
                self.later = max(self.later, row.dispatched_at) + timedelta(seconds=91)
                taken = self.claimer.claim(crowded, quiet, most=32, now=self.later, freshness=10**9)
                after = AgentTask.objects.get(id=row.id)
                assert row.id in taken or after.deliveries >= 5
                assert after.claim_token != row.claim_token or after.deliveries >= 5

        @invariant()
        def caps_and_keys_hold(self) -> None:
            states = ["dispatched", "waiting_local_directory", "running"]
            active = list(AgentTask.objects.filter(agent__in=self.agents, status__in=states))
            for agent in self.agents:
                mine = [row for row in active if row.agent_id == agent.id]
                keys = [row.serial_key for row in mine if row.serial_key]
                assert len(mine) <= agent.max_concurrent_tasks
                assert len(keys) == len(set(keys))

        @invariant()
        def a_verdict_is_true(self) -> None:
            for runtime_id, known in empty_claims.read([str(crowded.id), str(quiet.id)]).items():
                if known.verdict is not None:
                    queued = AgentTask.objects.filter(runtime_id=runtime_id, status="queued")
                    assert not queued.exists(), "a false empty verdict"

    return World


@pytest.fixture
def crowd() -> Agent:
    return block(factories.make_runtime(factories.make_workspace(), daemon_id="one", provider="p"))


@pytest.fixture
def quiet(crowd: Agent) -> AgentRuntime:
    return factories.make_runtime(crowd.workspace, daemon_id="one", provider="q")


QUICK = settings(
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    phases=[Phase.generate],
)
"""Without shrinking: a failure is told at once, and every step of it is printed."""


def test_a_claim_never_leaves_a_claimable_row_behind(crowd: Agent, quiet: AgentRuntime) -> None:
    """C-18, C-32, E-06, D7, D8: enqueue, claim, start, end, cancel and redelivery behind 10,000 blocked rows.

    Seen red with blocked rows taken for emptiness, with versions read after the look, and without the wider look.
    """
    run_state_machine_as_test(machine(crowd, quiet), settings=QUICK)


GUARDS = {
    "looks through one window alone": ("IF v_short THEN v_window := v_window * 16; END IF;", "EXIT WHEN v_short;"),
    "takes what is free for the cap": ("a.max_concurrent_tasks - coalesce(k.n, 0) AS n,", "v_room AS n,"),
    "takes two of a key": ("PARTITION BY q.agent_id, coalesce(q.serial_key, q.id::text)", "PARTITION BY q.id"),
}


def test_the_machine_finds_a_claim_without_its_guard(crowd: Agent, quiet: AgentRuntime) -> None:
    """D7, C-06, C-18: a claim that looks through one window alone, or leaves out a cap or a key, does not pass."""
    fixed = settings(QUICK, derandomize=True, max_examples=2, stateful_step_count=3)
    for what, guard in GUARDS.items():
        passed = True
        with without(guard) as function:
            try:
                run_state_machine_as_test(machine(crowd, quiet, function), settings=fixed)
            except (AssertionError, UniqueViolation):
                passed = False
        assert not passed, what
