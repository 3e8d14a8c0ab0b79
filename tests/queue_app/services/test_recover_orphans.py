"""A daemon that came back, and a daemon that no longer holds what it should."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from queue_app import auth, transitions
from queue_app.errors import NotFoundError, RuntimeNotFoundError
from queue_app.models import AgentTask, TaskOmission
from queue_app.services.recover_orphans import recover_omitted, recover_orphans
from queue_app.transitions import Report
from tests.support import factories, lifecycle
from tests.support.lifecycle import DAEMON, Site

pytestmark = pytest.mark.django_db

LIFE = uuid4()


@pytest.fixture
def site() -> Site:
    return Site()


def status_of(task: AgentTask) -> tuple[str, str | None]:
    row = AgentTask.objects.get(id=task.id)
    return row.status, row.failure_reason


def test_everything_active_is_recovered_and_nothing_else(site: Site) -> None:
    """O-04, O-05, L-20, S-03, O-07: three states fail, each with one child that goes on with the pinned session."""
    running = site.running()
    transitions.pin_session(running.id, claim_token=running.claim_token, session_id="s-1", work_dir="/w", actor=DAEMON)
    parked = lifecycle.park(lifecycle.dispatch(site.queued(issue=site.more_issue())))
    dispatched = lifecycle.dispatch(site.queued(issue=site.more_issue()))
    waiting = site.queued(issue=site.more_issue())
    assert recover_orphans(site.caller, site.runtime.id) == {"orphaned": 3, "retried": 3}
    for task in (running, parked, dispatched):
        assert status_of(task) == ("failed", "runtime_recovery")
    assert status_of(waiting) == ("queued", None)
    child = AgentTask.objects.get(retry_of_task_id=running.id)
    assert (child.status, child.session_id, child.work_dir) == ("queued", "s-1", "/w")


def test_recovering_again_finds_nothing(site: Site) -> None:
    """L-09, R-16: ten times in a row, one child."""
    site.running()
    counts = [recover_orphans(site.caller, site.runtime.id)["orphaned"] for _ in range(10)]
    assert counts == [1] + [0] * 9
    assert AgentTask.objects.count() == 2


def test_old_reports_do_not_touch_the_child(site: Site) -> None:
    """O-06: the old process completes late; the row and its child stay as they are."""
    task = site.running()
    recover_orphans(site.caller, site.runtime.id)
    late = transitions.complete(task.id, claim_token=task.claim_token, result={}, report=Report(), actor=DAEMON)
    assert late is None
    assert AgentTask.objects.get(retry_of_task_id=task.id).status == "queued"


def test_a_restart_lifts_the_holds_on_ended_rows(site: Site) -> None:
    """D3: the daemon has killed its survivors before it asks."""
    (task,) = transitions.cancel([site.running().id], actor="user:test")
    recover_orphans(site.caller, site.runtime.id)
    assert AgentTask.objects.get(id=task.id).stop_pending_since is None


def test_whose_runtime_it_is_matters(site: Site) -> None:
    """D18: a missing runtime and one out of reach differ in words."""
    with pytest.raises(RuntimeNotFoundError, match="runtime not found"):
        recover_orphans(site.caller, uuid4())
    with pytest.raises(NotFoundError, match=r"^not found$"):
        recover_orphans(auth.for_user(factories.make_user()), site.runtime.id)


# -------------------------------------------------------------------------------------------------------- omissions


def beat(site: Site, seq: int, moment: datetime, *held: UUID, life: UUID = LIFE) -> list[UUID]:
    return [row.id for row in recover_omitted(site.runtime, list(held), life, seq, now=moment)]


@pytest.fixture
def began(site: Site) -> tuple[AgentTask, datetime]:
    now = timezone.now()
    return lifecycle.start(lifecycle.dispatch(site.queued(), now=now), now=now), now


def later(began: tuple[AgentTask, datetime], seconds: float) -> datetime:
    return began[1] + timedelta(seconds=seconds)


def test_two_omissions_recover(site: Site, began: tuple[AgentTask, datetime]) -> None:
    """D10, STUCK-03: noted by the first beat, recovered by one 15 s later."""
    assert beat(site, 1, later(began, 20)) == []
    assert beat(site, 2, later(began, 34)) == []
    assert beat(site, 3, later(began, 36)) == [began[0].id]
    assert status_of(began[0]) == ("failed", "runtime_recovery")
    assert AgentTask.objects.filter(retry_of_task_id=began[0].id).count() == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [((5, LIFE), (5, LIFE)), ((5, LIFE), (4, LIFE)), ((5, LIFE), (9, uuid4()))],
    ids=["repeated", "overtaken", "another life"],
)
def test_only_later_beats_of_one_life_count(
    site: Site, began: tuple[AgentTask, datetime], first: tuple[int, UUID], second: tuple[int, UUID]
) -> None:
    """D10: increasing (incarnation, seq) or nothing."""
    assert beat(site, first[0], later(began, 20), life=first[1]) == []
    assert beat(site, second[0], later(began, 60), life=second[1]) == []
    assert status_of(began[0])[0] == "running"


def test_a_beat_that_names_it_clears_the_note(site: Site, began: tuple[AgentTask, datetime]) -> None:
    """D10: held in between means two omissions anew; a report that waits in the outbox counts as held."""
    beat(site, 1, later(began, 20))
    assert TaskOmission.objects.count() == 1
    beat(site, 2, later(began, 30), began[0].id)
    assert not TaskOmission.objects.exists()
    assert beat(site, 3, later(began, 60)) == []


def test_a_beat_from_before_the_start_says_nothing(site: Site, began: tuple[AgentTask, datetime]) -> None:
    """D10: what may have been composed before the start was answered is no omission."""
    beat(site, 1, later(began, 5))
    assert not TaskOmission.objects.exists()


def test_a_delivery_that_may_be_lost_is_not_an_orphan(site: Site) -> None:
    """D10: neither started nor extended: left to the next claim. Once extended it counts."""
    now = timezone.now()
    task = lifecycle.dispatch(site.queued(), now=now)
    for seq in range(5):
        assert beat(site, seq, now + timedelta(seconds=20 * seq)) == []
    lifecycle.renew(task, now=now + timedelta(seconds=80))
    assert beat(site, 10, now + timedelta(seconds=90)) == []
    assert beat(site, 11, now + timedelta(seconds=100)) == []
    assert beat(site, 12, now + timedelta(seconds=116)) == [task.id]


def test_a_new_delivery_begins_anew(site: Site, began: tuple[AgentTask, datetime]) -> None:
    """D10: a note about an older delivery counts for nothing and makes room for one about this delivery."""
    beat(site, 1, later(began, 20))
    TaskOmission.objects.update(claim_token=uuid4())
    assert beat(site, 2, later(began, 60)) == []
    assert beat(site, 3, later(began, 80)) == [began[0].id]


def test_a_beat_without_the_task_lifts_its_hold(site: Site, began: tuple[AgentTask, datetime]) -> None:
    """D3: as soon as the beat cannot have been composed before the daemon had the task."""
    transitions.cancel([began[0].id], actor="user:test", now=later(began, 30))

    def held() -> bool:
        return AgentTask.objects.get(id=began[0].id).stop_pending_since is not None

    beat(site, 1, later(began, 60), began[0].id)
    assert held()
    beat(site, 2, later(began, 40))
    assert held()
    beat(site, 3, later(began, 46))
    assert not held()
