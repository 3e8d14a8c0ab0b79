"""Being heard: what a heartbeat costs, what it writes and when, and what it says about held deliveries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from uuid_utils.compat import uuid7

from queue_app import redis, transitions
from queue_app.conf import conf
from queue_app.models import AgentRuntime, AgentTask, TaskOmission
from queue_app.services import liveness
from tests.support import factories
from tests.support.machine import Machine, fresh

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def machine() -> Iterator[Machine]:
    yield Machine.make()
    liveness.flush()


def beat(machine: Machine, runtime: AgentRuntime | None = None, **more: Any) -> dict[str, Any]:
    body = {"runtime_id": str((runtime or machine.runtime).pk), "supports_batch_import": True, **more}
    answer = machine.post("heartbeat", body)
    assert answer.status_code == 200, answer.content
    return dict(answer.json())


@contextmanager
def statements() -> Iterator[list[str]]:
    found: list[str] = []
    with CaptureQueriesContext(connection) as seen:
        yield found
    found += [query["sql"] for query in seen.captured_queries if query["sql"] not in ("BEGIN", "COMMIT")]


def heard_ago(runtime: AgentRuntime, seconds: float) -> None:
    """As if the row had been written that long ago, in the table and in the sign of life."""
    AgentRuntime.objects.filter(pk=runtime.pk).update(last_seen_at=timezone.now() - timedelta(seconds=seconds))
    liveness.keep([(runtime.pk, runtime.workspace_id)], age=seconds)


def seen_at(runtime: AgentRuntime) -> float:
    row = AgentRuntime.objects.get(pk=runtime.pk)
    assert row.last_seen_at is not None
    return (timezone.now() - row.last_seen_at).total_seconds()


def test_a_runtime_at_rest_costs_no_statement(machine: Machine) -> None:
    """L-13: within the flush period nothing is read or written, with and without a list of held tasks."""
    beat(machine)
    beat(machine, active_tasks=[], incarnation=str(uuid7()), seq=1)
    with statements() as made:
        for seq in range(2, 20):
            beat(machine)
            beat(machine, active_tasks=[], incarnation=str(uuid7()), seq=seq, slots={"total": 20, "free": 20})
    assert made == []


def test_heartbeats_that_are_due_become_one_statement(machine: Machine) -> None:
    """A hundred runtimes whose rows are a minute old are written together, and not twice."""
    runtimes = [factories.make_runtime(machine.workspace, provider=f"p{n}") for n in range(100)]
    for runtime in runtimes:
        heard_ago(runtime, conf.HEARTBEAT_FLUSH + 1)
    beat(machine)
    with statements() as made:
        for runtime in runtimes:
            beat(machine, runtime, slots={"total": 20, "free": 3, "x": "y"})
        assert liveness.flush() == 100
        for runtime in runtimes:
            beat(machine, runtime)
        assert liveness.flush() == 0
    assert len(made) == 1
    assert all(seen_at(runtime) < 5 for runtime in runtimes)
    assert AgentRuntime.objects.get(pk=runtimes[0].pk).slots == {"total": 20, "free": 3}


def test_a_bump_leaves_status_and_time_of_change_alone(machine: Machine) -> None:
    before = AgentRuntime.objects.get(pk=machine.runtime.pk)
    heard_ago(machine.runtime, conf.HEARTBEAT_FLUSH + 1)
    beat(machine)
    liveness.flush()
    after = AgentRuntime.objects.get(pk=machine.runtime.pk)
    assert (after.updated_at, after.status, after.fresh_since) == (before.updated_at, "online", before.fresh_since)


def test_the_first_heartbeat_after_the_batch_is_due_takes_it_along(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No timer of its own: whoever is heard next writes what waits."""
    other = factories.make_runtime(machine.workspace, provider="other")
    beat(machine, other)
    heard_ago(machine.runtime, conf.HEARTBEAT_FLUSH + 1)
    beat(machine)
    assert seen_at(machine.runtime) > conf.HEARTBEAT_FLUSH
    beat(machine, other)
    assert seen_at(machine.runtime) > conf.HEARTBEAT_FLUSH
    later = time.monotonic() + conf.HEARTBEAT_BATCH
    monkeypatch.setattr(time, "monotonic", lambda: later)
    beat(machine, other)
    # It was heard a batch ago, and that is what is written.
    assert conf.HEARTBEAT_BATCH - 5 < seen_at(machine.runtime) < conf.HEARTBEAT_FLUSH


def test_a_row_that_lost_its_batches_is_written_at_once(machine: Machine) -> None:
    """After a restart the row may be too old to wait for another batch."""
    heard_ago(machine.runtime, conf.HEARTBEAT_FLUSH + conf.HEARTBEAT_BATCH + 1)
    beat(machine)
    assert seen_at(machine.runtime) < 5


def test_an_offline_runtime_is_online_when_its_heartbeat_is_answered(machine: Machine) -> None:
    """L-25: online and fresh before the answer, with a new unbroken stretch."""
    AgentRuntime.objects.filter(pk=machine.runtime.pk).update(
        status="offline", last_seen_at=timezone.now() - timedelta(hours=1)
    )
    beat(machine)
    row = AgentRuntime.objects.get(pk=machine.runtime.pk)
    assert row.status == "online"
    assert row.fresh_since is not None
    assert (timezone.now() - row.fresh_since).total_seconds() < 5
    assert seen_at(machine.runtime) < 5


def test_a_row_taken_offline_behind_its_sign_of_life_heals_by_itself(machine: Machine) -> None:
    beat(machine)
    AgentRuntime.objects.filter(pk=machine.runtime.pk).update(status="offline")
    heard_ago(machine.runtime, conf.HEARTBEAT_FLUSH + 1)
    beat(machine)
    liveness.flush()
    beat(machine)
    assert AgentRuntime.objects.get(pk=machine.runtime.pk).status == "online"


def test_a_deleted_runtime_is_gone_at_the_next_heartbeat(machine: Machine) -> None:
    """The magic words, although its sign of life was fresh a moment ago."""
    runtime = factories.make_runtime(machine.workspace, provider="other")
    beat(machine, runtime)
    ident = str(runtime.pk)
    runtime.delete()
    answer = machine.post("heartbeat", {"runtime_id": ident})
    assert (answer.status_code, answer.json()["error"]) == (404, "runtime not found")


def test_a_sign_of_life_is_seen_by_who_wants_to_take_a_runtime_offline(machine: Machine) -> None:
    beat(machine)
    assert liveness.alive([machine.runtime.pk, uuid4()]) == {machine.runtime.pk}
    liveness.forget([machine.runtime.pk])
    assert liveness.alive([machine.runtime.pk]) == set()


def test_without_redis_every_heartbeat_reads_its_row_and_writes_it_only_when_due(
    machine: Machine, settings: Any
) -> None:
    settings.REDIS_URL = ""
    assert not redis.configured()
    assert liveness.alive([machine.runtime.pk]) == set()
    beat(machine)
    with statements() as made:
        for _ in range(5):
            beat(machine)
    assert all(sql.startswith("SELECT") for sql in made)
    AgentRuntime.objects.filter(pk=machine.runtime.pk).update(last_seen_at=timezone.now() - timedelta(seconds=70))
    beat(machine)
    assert seen_at(machine.runtime) < 5


# ---------------------------------------------------------------------------------------------------- held deliveries


class Process:
    """One run of a daemon: its beats carry its incarnation and growing numbers."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.incarnation, self.seq = machine, str(uuid7()), 0

    def holds(self, *tasks: AgentTask, token: object = None) -> None:
        self.seq += 1
        held = [{"task_id": str(task.pk), "claim_token": str(token or task.claim_token)} for task in tasks]
        beat(self.machine, active_tasks=held, incarnation=self.incarnation, seq=self.seq)


def running_for(machine: Machine, seconds: float) -> AgentTask:
    """A running task whose start was answered that long ago."""
    task = machine.claimed()
    then = timezone.now() - timedelta(seconds=seconds)
    transitions.start(task.pk, claim_token=task.claim_token, actor="test", now=then)
    return fresh(task)


def age_omissions(seconds: float) -> None:
    for noted in TaskOmission.objects.all():
        noted.at -= timedelta(seconds=seconds)
        noted.save()


def test_a_run_that_two_beats_leave_out_is_recovered(machine: Machine) -> None:
    """Design D10: two omissions, far enough apart, of the same process."""
    task = running_for(machine, 60)
    daemon = Process(machine)
    daemon.holds(task)
    daemon.holds()
    assert fresh(task).status == "running"
    daemon.holds()
    assert fresh(task).status == "running"
    age_omissions(conf.OMISSION_GAP + 1)
    daemon.holds()
    row = fresh(task)
    assert (row.status, row.failure_reason) == ("failed", "runtime_recovery")


def test_naming_it_again_starts_the_count_anew(machine: Machine) -> None:
    task = running_for(machine, 60)
    daemon = Process(machine)
    daemon.holds()
    age_omissions(conf.OMISSION_GAP + 1)
    daemon.holds(task)
    assert not TaskOmission.objects.exists()
    daemon.holds()
    assert fresh(task).status == "running"


def test_naming_it_under_an_old_token_is_not_holding_it(machine: Machine) -> None:
    task = running_for(machine, 60)
    daemon = Process(machine)
    daemon.holds(task, token=uuid4())
    age_omissions(conf.OMISSION_GAP + 1)
    daemon.holds(task, token=uuid4())
    assert fresh(task).status == "failed"


def test_an_overtaken_beat_proves_nothing(machine: Machine) -> None:
    """A beat with a lower number, or of an older process, that arrives late is ignored."""
    task = running_for(machine, 60)
    old, new = Process(machine), Process(machine)
    new.seq = 10
    new.holds()
    age_omissions(conf.OMISSION_GAP + 1)
    new.seq = 5
    new.holds()
    assert fresh(task).status == "running"
    for _ in range(3):
        old.holds()
    assert fresh(task).status == "running"
    new.seq = 11
    new.holds()
    assert fresh(task).status == "failed"


def test_a_beat_without_the_list_says_nothing(machine: Machine) -> None:
    task = running_for(machine, 60)
    beat(machine)
    beat(machine, incarnation=str(uuid7()), seq=1, active_tasks=None)
    assert not TaskOmission.objects.exists()
    assert fresh(task).status == "running"


def test_a_hold_ends_with_a_beat_that_lacks_the_task(machine: Machine) -> None:
    """Design D3: the process of a cancelled run is known to be gone; until then its key stays closed."""
    task = running_for(machine, 60)
    daemon = Process(machine)
    transitions.cancel([task.pk], actor="test", now=timezone.now() - timedelta(seconds=conf.OMISSION_GAP + 1))
    daemon.holds(task)
    assert fresh(task).stop_pending_since is not None
    daemon.holds()
    assert fresh(task).stop_pending_since is None


def test_a_change_on_the_server_is_looked_at_although_the_daemon_says_the_same(machine: Machine) -> None:
    """An agreement counts only while neither side changes: a claim in between bumps the version it was made under."""
    beat(machine)
    daemon = Process(machine)
    daemon.holds()
    with statements() as made:
        daemon.holds()
    assert made == []
    task = machine.claimed()
    machine.post(f"tasks/{task.pk}/start", {"claim_token": str(task.claim_token)})
    with statements() as made:
        daemon.holds()
    assert made
