"""`make bench`: the claim beside the bare statement, in one run. Only ratios count; fsync is off here."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

import pytest
from django.db import connection

from queue_app import transitions
from queue_app.models import AgentTask
from tests.race.harness import Claimer
from tests.support import factories

pytestmark = [pytest.mark.bench, pytest.mark.django_db(transaction=True)]
log = logging.getLogger("bench")

BARE = """
UPDATE bare SET status = 'dispatched' WHERE id = ANY(ARRAY(
  SELECT id FROM bare WHERE status = 'queued' ORDER BY priority DESC, created_at, id LIMIT 32 FOR UPDATE SKIP LOCKED))
"""


def milliseconds(action: Callable[[], object], times: int) -> float:
    """The median of `times` runs."""
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        action()
        taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)


def fill(agents: int, rows: int) -> list[AgentTask]:
    runtime = factories.make_runtime(factories.make_workspace())
    made: list[AgentTask] = []
    for _ in range(agents):
        agent = factories.make_agent(runtime, max_concurrent_tasks=50)
        made += transitions.enqueue([factories.task_values(agent)] * rows, actor="user:bench")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE agent_task_queue")
    return made


@pytest.mark.parametrize("rows", [1_000, 20_000])
def test_claim_of_32_beside_the_bare_statement(rows: int) -> None:
    """The claim keeps caps, keys, turns, tokens and events; this says what they cost."""
    agents = 10
    made = fill(agents, rows // agents)
    runtime = made[0].runtime
    assert runtime is not None
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE bare AS SELECT id, status, priority, created_at FROM agent_task_queue")
        cursor.execute("CREATE INDEX ON bare (priority DESC, created_at, id) WHERE status = 'queued'")
        cursor.execute("ANALYZE bare")
        bare = milliseconds(lambda: cursor.execute(BARE), 10)
        cursor.execute("DROP TABLE bare")
    with Claimer() as claimer:
        ours = milliseconds(lambda: claimer.claim(runtime, most=32, freshness=10**9), 10)
        idle = factories.make_runtime(runtime.workspace)
        empty = milliseconds(lambda: claimer.claim(idle, most=32), 10)
    log.warning("%d waiting, ms: bare %.2f, claim %.2f, empty %.2f", rows, bare, ours, empty)
    assert AgentTask.objects.filter(status="dispatched").count() == 320
    assert ours < 200 * bare
