"""The state machine from its table: each verb on each status, and what one writes of the other's columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from queue_app import transitions
from queue_app.domain.states import EDGES, TERMINAL, Status, accepts
from queue_app.models import AgentTask, TaskEvent
from queue_app.services import verify_history
from queue_app.transitions import Report
from tests.support import lifecycle
from tests.support.lifecycle import DAEMON, Site, row_of

pytestmark = pytest.mark.django_db

FAR = timedelta(hours=30)


@dataclass
class Case:
    """A row in a status whose guards beyond the status hold for the verb under test."""

    site: Site
    task: AgentTask

    @property
    def token(self) -> Any:
        return self.task.claim_token

    @property
    def later(self) -> datetime:
        return timezone.now() + FAR


def _queued(site: Site) -> AgentTask:
    return site.queued()


def _deferred(site: Site) -> AgentTask:
    parent = lifecycle.failed(site.running())
    return site.queued(status="deferred", fire_at=timezone.now() - timedelta(seconds=1), retry_of_task_id=parent.id)


def _waiting(site: Site) -> AgentTask:
    return lifecycle.park(lifecycle.dispatch(site.queued()))


def _completed(site: Site) -> AgentTask:
    task = site.running()
    row = transitions.complete(task.id, claim_token=task.claim_token, result={}, report=Report(), actor=DAEMON)
    assert row is not None
    return row


def _failed(site: Site) -> AgentTask:
    task = site.running()
    site.silent(4 * 3600)
    (row,) = transitions.lose_runtime(error="gone", actor="sweep:test")
    assert row.id == task.id
    return row


def _cancelled(site: Site) -> AgentTask:
    (row,) = transitions.cancel([site.running().id], actor="user:test")
    return row


ROWS: dict[Status, Callable[[Site], AgentTask]] = {
    Status.QUEUED: _queued,
    Status.DEFERRED: _deferred,
    Status.DISPATCHED: lambda site: lifecycle.dispatch(site.queued()),
    Status.WAITING_LOCAL_DIRECTORY: _waiting,
    Status.RUNNING: lambda site: site.running(),
    Status.COMPLETED: _completed,
    Status.FAILED: _failed,
    Status.CANCELLED: _cancelled,
}


def _claim(case: Case) -> None:
    try:
        lifecycle.dispatch(case.task)
    except AssertionError:
        return


def _redeliver(case: Case) -> None:
    try:
        lifecycle.dispatch(case.task, now=case.later)
    except AssertionError:
        return


def _promote(case: Case) -> None:
    transitions.promote(runtime_ids=[case.site.runtime.id], actor="sweep:test")


def _expire_deferred(case: Case) -> None:
    transitions.expire_deferred(error="x", actor="sweep:test", now=case.later)


def _lose(case: Case) -> None:
    case.site.silent(4 * 3600)
    transitions.lose_runtime(error="x", actor="sweep:test")


def _requeue(case: Case) -> None:
    transitions.requeue(case.task.id, claim_token=case.token or uuid4(), reason="x")


def _attribution(case: Case) -> dict[str, Any]:
    person = case.site.owner.id
    return {
        "originator": person,
        "accountable": person,
        "source": "direct_human",
        "evidence_kind": "comment",
        "evidence_ref": None,
    }


VERBS: dict[str, Callable[[Case], object]] = {
    "merge": lambda c: transitions.merge(
        c.task.id, comment_id=uuid4(), summary="s", attribution=_attribution(c), actor=DAEMON
    ),
    "reprioritise": lambda c: transitions.reprioritise(c.task.id, priority=3, actor=DAEMON),
    "age": lambda c: transitions.age([c.task.id], step=600, actor=DAEMON, now=c.later),
    "promote": _promote,
    "claim": _claim,
    "redeliver": _redeliver,
    "record_delivery": lambda c: transitions.record_delivery(
        c.task.id, claim_token=c.token or uuid4(), comment_ids=[uuid4()]
    ),
    "requeue": _requeue,
    "renew_lease": lambda c: transitions.renew_lease(
        c.task.id, runtime_id=c.site.runtime.id, claim_token=c.token, actor=DAEMON
    ),
    "park": lambda c: transitions.park(c.task.id, claim_token=c.token, wait_reason="x", actor=DAEMON),
    "start": lambda c: transitions.start(c.task.id, claim_token=c.token, actor=DAEMON),
    "pin_session": lambda c: transitions.pin_session(
        c.task.id, claim_token=c.token, session_id="s", work_dir="/w", actor=DAEMON
    ),
    "complete": lambda c: transitions.complete(
        c.task.id, claim_token=c.token, result={"output": "x"}, report=Report(), actor=DAEMON
    ),
    "fail": lambda c: transitions.fail(c.task.id, claim_token=c.token, reason="timeout", error="x", actor=DAEMON),
    "recover_orphan": lambda c: transitions.recover_orphan(runtime_id=c.site.runtime.id, error="x", actor="sweep:test"),
    "time_out": lambda c: transitions.time_out(error="x", actor="sweep:test", now=c.later),
    "lose_runtime": _lose,
    "expire_queued": lambda c: transitions.expire_queued(error="x", actor="sweep:test", now=c.later),
    "expire_deferred": _expire_deferred,
    "cancel": lambda c: transitions.cancel([c.task.id], actor="user:test"),
    "confirm_stop": lambda c: transitions.confirm_stop(c.task.id, claim_token=c.token, actor=DAEMON),
    "release_hold": lambda c: transitions.release_hold([c.task.id], reason="x", actor=DAEMON),
    "settle_chat": lambda c: transitions.settle_chat(c.task.id, actor=DAEMON),
    "explain_no_retry": lambda c: transitions.explain_no_retry(c.task.id, because="no"),
}

UNREACHABLE = {
    # Only ends that the server makes leave a process behind, and a completion is the daemon's own word.
    ("release_hold", Status.COMPLETED),
}


SAME_DOOR = {("redeliver", Status.QUEUED)}
"""One statement claims and redelivers: a queued row that it meets is claimed, under that name."""


def test_every_verb_of_the_table_is_tried() -> None:
    """Q-07: no verb escapes the table test below; `enqueue` and `defer` make rows and have no prior status."""
    assert set(VERBS) == set(EDGES) - {"enqueue", "defer"}


def _case(status: Status, verb: str) -> Case:
    site = Site()
    if verb == "settle_chat" and status is Status.CANCELLED:
        chat = {"issue": None, "kind": "chat", "chat_session_id": uuid4(), "serial_key": None}
        (task,) = transitions.cancel([site.running(**chat).id], actor="user:test", defer_chat=True)
        return Case(site, task)
    return Case(site, ROWS[status](site))


@pytest.mark.parametrize("status", sorted(Status))
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_each_verb_moves_exactly_the_statuses_of_the_table(status: Status, verb: str) -> None:
    """Q-07, Q-08, T-01: a verb either makes its one move with one event, or leaves the row byte for byte as it was."""
    case = _case(status, verb)
    before, events = row_of(case.task), TaskEvent.objects.filter(task_id=case.task.id).count()
    VERBS[verb](case)
    row = AgentTask.objects.get(id=case.task.id)
    if (verb, status) in SAME_DOOR:
        assert not TaskEvent.objects.filter(task_id=row.id, verb=verb).exists()
    elif accepts(verb, status) and (verb, status) not in UNREACHABLE:
        assert row.status == (EDGES[verb].target or status)
        last = TaskEvent.objects.filter(task_id=row.id).order_by("-seq").first()
        assert last is not None
        assert (last.verb, last.seq, last.from_status) == (verb, events + 1, status)
    else:
        assert row_of(case.task) == before
        assert TaskEvent.objects.filter(task_id=row.id).count() == events
    assert not [finding for batch in verify_history.verify(task_id=row.id) for finding in batch.findings]


FENCED = (
    "record_delivery",
    "requeue",
    "renew_lease",
    "park",
    "start",
    "pin_session",
    "complete",
    "fail",
    "confirm_stop",
)


@pytest.mark.parametrize("verb", FENCED)
def test_a_token_that_is_not_the_rows_changes_nothing(verb: str) -> None:
    """L-11: every verb of a delivery is fenced, also where the status would allow it."""
    status = next(s for s in sorted(Status) if accepts(verb, s) and s is not Status.COMPLETED)
    case = _case(status, verb)
    case.task.claim_token = uuid4()
    before = row_of(case.task)
    VERBS[verb](case)
    assert row_of(case.task) == before


@pytest.mark.parametrize("status", sorted(TERMINAL))
@pytest.mark.parametrize("target", sorted(set(Status)))
def test_no_hand_revives_a_row_that_ended(status: Status, target: Status) -> None:
    """Q-06, Q-08: the database itself refuses, whoever writes."""
    task = _case(status, "cancel").task
    if target == status:
        return
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE agent_task_queue SET status = %s WHERE id = %s", [target, task.id])


def test_start_clears_the_wait_and_the_lease() -> None:
    """T-02: nothing of the preparation is left on a running row."""
    row = lifecycle.start(_waiting(Site()))
    assert (row.wait_reason, row.prepare_lease_expires_at) == (None, None)
    assert row.started_at is not None


def test_a_cancelled_row_tells_when_it_was_cancelled_and_when_the_process_stopped() -> None:
    """X-14: two moments, two columns; the hold ends with the second."""
    task = _cancelled(Site())
    assert task.completed_at
    assert task.stop_pending_since
    assert task.stopped_at is None
    row = transitions.confirm_stop(
        task.id, claim_token=task.claim_token, actor=DAEMON, now=timezone.now() + timedelta(seconds=9)
    )
    assert row is not None
    assert row.stopped_at is not None
    assert row.stopped_at > row.completed_at
    assert row.stop_pending_since is None


BAD_ROWS: dict[str, tuple[Status, dict[str, Any]]] = {
    "task_terminal_has_end": (Status.COMPLETED, {"completed_at": None}),
    "task_active_has_owner": (Status.RUNNING, {"claim_token": None}),
    "task_running_has_start": (Status.RUNNING, {"started_at": None}),
    "task_preparing_has_lease": (Status.DISPATCHED, {"prepare_lease_expires_at": None}),
    "task_waiting_is_unclaimed": (Status.QUEUED, {"claim_token": uuid4()}),
    "task_deferred_has_time": (Status.DEFERRED, {"fire_at": None}),
    "task_failed_has_reason": (Status.FAILED, {"failure_reason": None}),
    "task_accountable_is_originator": (Status.QUEUED, {"accountable_user_id": None}),
    "task_kind_has_its_link": (Status.QUEUED, {"issue_id": None}),
    "task_priority_check": (Status.QUEUED, {"priority": 5}),
    "task_attempt_check": (Status.QUEUED, {"attempt": 0}),
    "task_kind_check": (Status.QUEUED, {"kind": "letter"}),
    "task_status_check": (Status.QUEUED, {"status": "asleep"}),
}


@pytest.mark.parametrize("name", sorted(BAD_ROWS))
def test_the_schema_refuses_rows_that_cannot_be(name: str) -> None:
    """Q-01, Q-09: status, times, owner, people and links are tied together by the last guard there is."""
    status, values = BAD_ROWS[name]
    task = _case(status, "cancel").task
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        sets = ", ".join(f"{column} = %s" for column in values)
        with pytest.raises(IntegrityError, match=name), transaction.atomic():
            cursor.execute(f"UPDATE agent_task_queue SET {sets} WHERE id = %s", [*values.values(), task.id])


def test_one_retry_one_slot_one_active_row() -> None:
    """Q-01: the partial unique indexes refuse a second retry of one parent and a second pending row of one pair."""
    site = Site()
    parent = lifecycle.failed(site.running())
    child = {"retry_of_task_id": parent.id, "parent_task_id": parent.id}
    assert site.queued(**child)
    with pytest.raises(ValueError, match="not enough values"):
        site.queued(**child, issue=site.more_issue())
    with pytest.raises(ValueError, match="not enough values"):
        site.queued()
