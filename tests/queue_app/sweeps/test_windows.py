"""Each window at its threshold, one second before and one after, and only its own consequence."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from queue_app import transitions
from queue_app.models import AgentRuntime, AgentTask
from queue_app.services import liveness
from queue_app.sweeps import (
    age,
    expire_deferred,
    expire_queued,
    lose_runtime,
    mark_offline,
    promote,
    release_holds,
    runner,
    time_out,
)
from queue_app.sweeps.base import Sweep
from tests.support import factories, lifecycle
from tests.support.lifecycle import Site, row_of

pytestmark = pytest.mark.django_db

BASE = timezone.now().replace(microsecond=0) + timedelta(hours=1)


@pytest.fixture
def site() -> Site:
    return Site()


def at(seconds: float) -> datetime:
    return BASE + timedelta(seconds=seconds)


def heard(site: Site, moment: datetime, **fields: Any) -> None:
    AgentRuntime.objects.filter(id=site.runtime.id).update(last_seen_at=moment, **fields)


def status_of(task: AgentTask) -> tuple[str, str | None]:
    row = AgentTask.objects.get(id=task.id)
    return row.status, row.failure_reason


def acts_only_after(sweep: Sweep, seconds: float, task: AgentTask | None = None) -> None:
    """Nothing one second before the threshold, a dry run that touches nothing, one row one second after."""
    before = row_of(task) if task else ""
    assert sweep.run_once(at(seconds - 1)).acted == 0
    preview = sweep.run_once(at(seconds + 1), dry_run=True)
    assert [row.id for row in preview.due] == [task.id] if task else len(preview.due) == 1
    assert abs(preview.due[0].margin - 1) < 0.01
    assert (row_of(task) if task else "") == before
    assert sweep.run_once(at(seconds + 1)).acted == 1
    assert sweep.run_once(at(seconds + 1)).acted == 0


def test_a_runtime_is_offline_after_150_seconds_of_silence(site: Site) -> None:
    """L-12, L-14, L-25: not at 149 s, at 151 s; no task is touched."""
    task = site.running()
    heard(site, BASE)
    before = row_of(task)
    acts_only_after(mark_offline.SWEEP, 150)
    assert AgentRuntime.objects.get(id=site.runtime.id).status == "offline"
    assert row_of(task) == before


def test_a_sign_of_life_in_redis_vetoes(site: Site) -> None:
    """L-14: the table may lag behind by a batch."""
    heard(site, BASE)
    liveness.keep([(site.runtime.id, site.workspace.id)])
    assert mark_offline.run_once(at(151), dry_run=True).due == ()
    assert mark_offline.run_once(at(151)).acted == 0
    liveness.forget([site.runtime.id])
    assert mark_offline.run_once(at(151)).acted == 1


def test_a_runtime_that_never_spoke_counts_from_its_making(site: Site) -> None:
    """L-12: a null is not eternal life."""
    AgentRuntime.objects.filter(id=site.runtime.id).update(last_seen_at=None)
    assert mark_offline.run_once(at(0)).acted == 1


def test_a_lost_machine_fails_its_work_after_three_hours(site: Site) -> None:
    """L-15, L-17: only offline and silent for the whole grace; the retry waits for the machine."""
    task = site.running()
    heard(site, BASE, status="offline")
    acts_only_after(lose_runtime.SWEEP, 10800, task)
    row = AgentTask.objects.get(id=task.id)
    assert (row.status, row.failure_reason) == ("failed", "runtime_offline")
    assert row.stop_pending_since is not None
    child = AgentTask.objects.get(retry_of_task_id=task.id)
    assert (child.status, child.attempt) == ("deferred", 2)


def test_a_machine_that_is_online_loses_nothing(site: Site) -> None:
    """L-17: silence alone is not enough; the machine must have been taken offline first."""
    site.running()
    heard(site, BASE, status="online")
    assert lose_runtime.run_once(at(20000)).acted == 0


@pytest.mark.parametrize("parked", [False, True])
def test_a_preparation_dies_with_its_extended_lease(site: Site, parked: bool) -> None:
    """L-03, L-07, L-15, L-16: not one second before its end, one after; one child, the old process held."""
    heard(site, at(0))
    task = lifecycle.dispatch(site.queued(), now=at(-60))
    task = (lifecycle.park if parked else lifecycle.renew)(task, now=at(-45))
    acts_only_after(time_out.SWEEP, 0, task)
    row = AgentTask.objects.get(id=task.id)
    assert (row.status, row.failure_reason) == ("failed", "timeout")
    assert row.stop_pending_since is not None
    assert AgentTask.objects.filter(retry_of_task_id=task.id, status="queued").count() == 1


def test_a_renewed_preparation_of_any_length_lives(site: Site) -> None:
    """L-04, L-06: 300 s of preparation with renewals every 15 s."""
    task = lifecycle.dispatch(site.queued(), now=at(0))
    for second in range(15, 315, 15):
        assert time_out.run_once(at(second)).acted == 0
        lifecycle.renew(task, now=at(second))
    assert status_of(task) == ("dispatched", None)


def test_a_delivery_that_may_be_lost_is_not_a_dead_preparation(site: Site) -> None:
    """L-15: never extended means delivered again by the next claim, and failed only by the dispatch backstop."""
    heard(site, at(300))
    task = lifecycle.dispatch(site.queued(), now=at(0))
    acts_only_after(time_out.SWEEP, 300, task)
    assert AgentTask.objects.get(id=task.id).stop_pending_since is None


def test_the_last_delivery_ends_after_its_recovery_window(site: Site) -> None:
    """L-01, L-08, D3a: five deliveries, then failed with timeout instead of a sixth."""
    task = lifecycle.dispatch(site.queued(), now=at(-400))
    for delivery in range(2, 6):
        task = lifecycle.dispatch(task, now=at(-400 + (delivery - 1) * 100))
    assert task.deliveries == 5
    acts_only_after(time_out.SWEEP, 90, task)
    assert status_of(task) == ("failed", "timeout")


@pytest.mark.parametrize("hours", [2, 24, 24 * 30])
def test_a_healthy_run_has_no_age(site: Site, hours: int) -> None:
    """L-21, L-24, DUP-01: with heartbeats no sweep ends it, however long it runs."""
    task = site.running()
    moment = at(hours * 3600)
    heard(site, moment, fresh_since=BASE)
    before = row_of(task)
    assert [getattr(result, "acted", result) for result in runner.run_once(now=moment)] == [0] * len(runner.SWEEPS)
    assert row_of(task) == before


def test_the_running_backstop_needs_a_lost_machine(site: Site) -> None:
    """L-24, D4: 2.5 h of running and 3 h of silence, both."""
    task = lifecycle.dispatch(site.queued(), now=at(-9000))
    lifecycle.start(task, now=at(-9000))
    heard(site, at(-10800 + 1))
    assert time_out.run_once(at(0)).acted == 0
    assert time_out.run_once(at(2)).acted == 1
    assert status_of(task) == ("failed", "timeout")


def test_a_queued_task_expires_after_a_day_and_a_retry_does_not(site: Site) -> None:
    """L-18: failed as expired, not retried; retries are exempt."""
    parent = lifecycle.failed(site.running())
    site.queued(created_at=BASE, retry_of_task_id=parent.id)
    task = site.queued(created_at=BASE, issue=site.more_issue())
    acts_only_after(expire_queued.SWEEP, 86400, task)
    assert status_of(task) == ("failed", "queued_expired")
    assert not AgentTask.objects.filter(retry_of_task_id=task.id).exists()


def test_a_retry_waits_for_its_machine_for_three_hours(site: Site) -> None:
    """L-19: then it fails, unless the machine is healthy."""
    parent = lifecycle.failed(site.running())
    task = site.queued(status="deferred", fire_at=BASE, retry_of_task_id=parent.id)
    heard(site, at(-1000), status="offline")
    acts_only_after(expire_deferred.SWEEP, 10800, task)
    assert status_of(task) == ("failed", "runtime_reconnect_timeout")


def test_a_deferred_task_is_promoted_when_it_is_due_on_a_fresh_machine(site: Site) -> None:
    """L-19, Q-05: by the sweep alone, without any claim."""
    task = site.queued(status="deferred", fire_at=BASE)
    heard(site, at(-200))
    assert promote.run_once(at(1)).acted == 0
    heard(site, at(0))
    acts_only_after(promote.SWEEP, 0, task)
    assert status_of(task) == ("queued", None)


def test_a_hold_ends_after_five_healthy_minutes(site: Site) -> None:
    """D3: counted from the later of the end and the machine's return, and only while it is heard."""
    task = site.running()
    transitions.cancel([task.id], actor="user:test", now=at(-100))
    heard(site, at(301), fresh_since=BASE)
    acts_only_after(release_holds.SWEEP, 300, task)
    assert AgentTask.objects.get(id=task.id).stop_pending_since is None


@pytest.mark.parametrize(
    "fields", [{"status": "offline"}, {"fresh_since": None}, {"last_seen_at": at(100)}, {"fresh_since": at(600)}]
)
def test_a_hold_stays_while_the_machine_is_not_well(site: Site, fields: dict[str, Any]) -> None:
    """D3: an absent machine may still run the old process."""
    task = site.running()
    transitions.cancel([task.id], actor="user:test", now=at(0))
    heard(site, at(700), fresh_since=BASE)
    AgentRuntime.objects.filter(id=site.runtime.id).update(**fields)
    assert release_holds.run_once(at(700)).acted == 0


# ---------------------------------------------------------------------------------------------------------- promote


def _slot_taken(site: Site) -> None:
    site.queued()


def _old_process(site: Site) -> None:
    transitions.cancel([site.running().id], actor="user:test")


@pytest.mark.parametrize("obstacle", [_slot_taken, _old_process])
def test_promotion_waits_for_the_slot_and_for_the_old_process(site: Site, obstacle: Callable[[Site], None]) -> None:
    """C-19 side: nothing is promoted into an occupied slot or beside a process that may live."""
    obstacle(site)
    task = site.queued(status="deferred", fire_at=BASE)
    heard(site, at(0))
    assert promote.run_once(at(1), dry_run=True).due == ()
    promote.run_once(at(1))
    assert status_of(task) == ("deferred", None)


def test_of_two_deferred_rows_of_a_pair_one_is_promoted(site: Site) -> None:
    """Scheduler 14.47: the other waits for the slot."""
    first = site.queued(status="deferred", fire_at=BASE)
    second = site.queued(status="deferred", fire_at=BASE)
    heard(site, at(0))
    assert promote.run_once(at(1)).acted == 1
    assert [status_of(task)[0] for task in (first, second)] == ["queued", "deferred"]


def test_a_superseded_retry_is_cancelled_unless_its_words_would_be_lost(site: Site) -> None:
    """Scheduler 14.46, LOST-05: newer work takes its place only if it knows every comment of it."""
    parent = lifecycle.failed(site.running())
    words = factories.make_user().id
    carrying = site.queued(status="deferred", fire_at=BASE, retry_of_task_id=parent.id, trigger_comment_id=words)
    other = Site()
    plain_parent = lifecycle.failed(other.running())
    plain = other.queued(status="deferred", fire_at=BASE, retry_of_task_id=plain_parent.id)
    site.queued()
    other.queued()
    promote.run_once(at(1))
    assert status_of(plain)[0] == "cancelled"
    assert status_of(carrying)[0] == "deferred"


# -------------------------------------------------------------------------------------------------------------- age


def priorities(tasks: list[AgentTask]) -> list[tuple[int, int]]:
    rows = AgentTask.objects.in_bulk([task.id for task in tasks])
    return [(rows[task.id].priority, rows[task.id].base_priority) for task in tasks]


def test_a_head_rises_by_one_for_every_ten_minutes(site: Site) -> None:
    """D7: at 599 s not, at 601 s by one, at 40 min it is urgent, never more; its base stays."""
    task = site.queued(created_at=BASE)
    acts_only_after(age.SWEEP, 600, task)
    assert priorities([task]) == [(1, 0)]
    age.run_once(at(2401))
    assert priorities([task]) == [(4, 0)]
    assert age.run_once(at(90000)).acted == 0


def test_only_heads_rise_and_no_more_than_the_cap(site: Site) -> None:
    """D7: the oldest of each key, at most as many as the agent could run at once."""
    type(site.agent).objects.filter(id=site.agent.id).update(max_concurrent_tasks=2)
    tasks = [site.queued(created_at=at(second), issue=site.more_issue()) for second in range(5)]
    chat = {"issue": None, "kind": "quick_create", "serial_key": "quick-create"}
    early = [site.queued(created_at=at(-20 + number), **chat) for number in range(3)]
    assert age.run_once(at(700)).acted == 2
    assert priorities([*early, *tasks]) == [(1, 0), (0, 0), (0, 0), (1, 0), (0, 0), (0, 0), (0, 0), (0, 0)]


def test_a_key_with_an_active_row_does_not_rise_and_hides_nobody(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """D7: more blocked rows in front than the first look takes in; the free one behind them is found all the same."""
    from queue_app.services import age as service

    monkeypatch.setattr(service, "FIRST_WINDOW", 2)
    chat = {"issue": None, "kind": "quick_create", "serial_key": "quick-create"}
    lifecycle.start(lifecycle.dispatch(site.queued(**chat)))
    blocked = [site.queued(created_at=at(number), **chat) for number in range(9)]
    free = site.queued(created_at=at(20))
    assert age.run_once(at(700)).acted == 1
    assert priorities([free, blocked[0]]) == [(1, 0), (0, 0)]


def test_ageing_can_be_turned_off(site: Site, settings: Any) -> None:
    """D7: 0 turns it off."""
    site.queued(created_at=BASE)
    settings.MULTICA = {**settings.MULTICA, "AGEING_STEP": 0}
    assert age.run_once(at(9000), dry_run=True).due == ()
    assert age.run_once(at(9000)).acted == 0


def test_rows_of_other_sweeps_are_left_alone(site: Site) -> None:
    """L-15: a lost delivery, a late preparation and a lost machine, each alone: only its own sweep acts."""
    heard(site, at(0), fresh_since=at(-7200))
    late = lifecycle.renew(lifecycle.dispatch(site.queued(), now=at(-200)), now=at(-100))
    acted = {result.name: result.acted for sweep in runner.SWEEPS if (result := sweep.run_once(at(0)))}
    assert {name: count for name, count in acted.items() if count} == {"time_out": 1}
    assert status_of(late) == ("failed", "timeout")
