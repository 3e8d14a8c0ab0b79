"""Random worlds: whatever happened before, a claim leaves nothing behind that it could have given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from queue_app import auth, empty_claims, transitions
from queue_app.models import Agent, AgentRuntime, AgentTask
from queue_app.services.claim import claim
from tests.race.harness import Claimer
from tests.support import factories
from tests.support.lifecycle import DAEMON

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


def block(runtime: AgentRuntime) -> None:
    """Ten thousand urgent rows in front of everything, all under the key of a task that is active."""
    agent = factories.make_agent(runtime)
    values = factories.task_values(agent, serial_key="blocked", priority=4)
    transitions.enqueue([values], actor="user:test")
    with Claimer() as claimer:
        assert len(claimer.claim(runtime)) == 1
    for _ in range(BLOCKED // 1000):
        transitions.enqueue([values] * 1000, actor="user:test")


def machine(crowded: AgentRuntime, quiet: AgentRuntime) -> type[RuleBasedStateMachine]:
    """The state machine over two machines: one with the blocked rows in front, one where emptiness is possible."""
    caller = auth.for_user(factories.owner_of(crowded.workspace))

    class World(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.agents = [
                factories.make_agent(runtime, max_concurrent_tasks=cap)
                for runtime in (crowded, quiet)
                for cap in (1, 3)
                for runtime in (crowded, quiet)
                for cap in (1, 3)
            ]
            self.claimer = Claimer()
            self.later = datetime.now(UTC)

        def teardown(self) -> None:
            self.claimer.connection.close()
            rows = self.rows("queued", "dispatched", "running")
            for row in transitions.cancel([row.id for row in rows], actor="user:test"):
                transitions.release_hold([row.id], reason="end", actor=DAEMON)

        def rows(self, *states: str) -> list[AgentTask]:
            mine = AgentTask.objects.filter(agent__in=self.agents, status__in=states)
            return list(mine.order_by("created_at", "id"))

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

        @rule(most=st.integers(1, 3))
        def claim_through_the_cache(self, most: int) -> None:
            ids = [str(quiet.id)]
            taken = claim(
                caller, daemon_id=quiet.daemon_id, runtime_ids=ids, max_tasks=most, timeout_ms=None, door="http"
            )
            if len(taken) < most:
                assert self.claimable(self.agents[2:]) == 0, "a false empty verdict"

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
            active = self.rows("dispatched", "waiting_local_directory", "running")
            for agent in self.agents:
                mine = [row for row in active if row.agent_id == agent.id]
                keys = [row.serial_key for row in mine if row.serial_key]
                assert len(mine) <= agent.max_concurrent_tasks
                assert len(keys) == len(set(keys))

    return World


def test_a_claim_never_leaves_a_claimable_row_behind() -> None:
    """C-18, C-32, E-06, D7: enqueue, claim, start, end, cancel and redelivery behind 10,000 blocked rows."""
    workspace = factories.make_workspace()
    crowded, quiet = (factories.make_runtime(workspace, daemon_id="one", provider=name) for name in ("p", "q"))
    block(crowded)
    quick = settings(
        max_examples=25,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    run_state_machine_as_test(machine(crowded, quiet), settings=quick)
