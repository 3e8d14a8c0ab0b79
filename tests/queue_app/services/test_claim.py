"""The claim service: its windows to the second, its batch, one record for each outcome, and its book-keeping."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.utils import timezone

from queue_app import decisions, empty_claims, events, transitions
from queue_app.conf import conf
from queue_app.errors import UnavailableError
from queue_app.models import Agent, AgentRuntime, AgentTask, ClaimDecision, TaskEvent
from queue_app.services import claim_answer, promote
from queue_app.services.claim import claim
from tests.support import factories
from tests.support.lifecycle import Site, dispatch, failed, start

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def site() -> Site:
    return Site(max_concurrent_tasks=50)


def poll(site: Site, *runtimes: AgentRuntime | UUID, room: int = 100, **options: Any) -> list[str]:
    """The ids that one request of the site's daemon got, for its own runtime unless others are named."""
    ids = [str(getattr(runtime, "id", runtime)) for runtime in runtimes or (site.runtime,)]
    answer = claim(site.caller, daemon_id=site.runtime.daemon_id, runtime_ids=ids, max_tasks=room, **options)
    return [task["id"] for task in answer]


def records(*runtimes: AgentRuntime | UUID) -> list[tuple[str, int]]:
    """What was kept of the requests of these runtimes: outcome and count, the deliveries by their events."""
    decisions.flush()
    ids = [getattr(runtime, "id", runtime) for runtime in runtimes]
    kept = list(ClaimDecision.objects.filter(runtime_id__in=ids).order_by("first_at").values_list("outcome", "count"))
    verbs = TaskEvent.objects.filter(task__runtime_id__in=ids, verb__in=["claim", "redeliver"])
    return kept + [(verb, 1) for verb in verbs.order_by("at").values_list("verb", flat=True)]


@pytest.mark.parametrize(("silence", "served"), [(149, True), (151, False)])
def test_a_machine_is_served_for_150_seconds_after_it_was_heard(site: Site, silence: int, served: bool) -> None:
    """C-05: the claim works 149 s after the last sign of life and gives nothing after 151 s."""
    assert conf.RUNTIME_FRESHNESS == 150
    task = site.queued()
    heard = AgentRuntime.objects.get(id=site.runtime.id).last_seen_at
    assert heard is not None
    assert poll(site, now=heard + timedelta(seconds=silence)) == ([str(task.id)] if served else [])


@pytest.mark.parametrize(("offset", "served"), [(-1, False), (1, True)])
def test_deferred_work_is_claimable_from_its_time_on(site: Site, offset: int, served: bool) -> None:
    """C-19: a second before `fire_at` the claim gives nothing, a second after it gives the task."""
    fire_at = datetime.now(UTC) + timedelta(seconds=60)
    task = site.queued(status="deferred", fire_at=fire_at)
    assert poll(site, now=fire_at + timedelta(seconds=offset)) == ([str(task.id)] if served else [])


def test_one_answer_carries_no_more_than_32_tasks(site: Site) -> None:
    """C-23: 40 eligible tasks with large texts and a request for 100: 32 full tasks, then the other 8."""
    text = "what has to be done " * 2_000
    rows = [site.queued(issue=site.more_issue(description=text)) for _ in range(40)]
    first, second = poll(site), poll(site)
    assert (len(first), len(second)) == (32, 8)
    assert sorted(first + second) == sorted(str(row.id) for row in rows)


def nothing(site: Site) -> None:
    """No row at all."""


def behind_the_key(site: Site) -> None:
    start(dispatch(site.queued(issue=None, serial_key="quick-create")))
    site.queued(issue=None, serial_key="quick-create")


def above_the_cap(site: Site) -> None:
    site.running()
    Agent.objects.filter(id=site.agent.id).update(max_concurrent_tasks=1)
    site.queued(issue=site.more_issue())


def offline(site: Site) -> None:
    site.silent(1)


def unheard(site: Site) -> None:
    site.silent(151, status="online")


def paused(site: Site) -> None:
    AgentRuntime.objects.filter(id=site.runtime.id).update(paused_at=timezone.now())


def without_owner(site: Site) -> None:
    AgentRuntime.objects.filter(id=site.runtime.id).update(owner=None)


def of_another_daemon(site: Site) -> None:
    AgentRuntime.objects.filter(id=site.runtime.id).update(daemon_id=uuid4().hex)


@pytest.mark.parametrize(
    ("situation", "outcome"),
    [
        (nothing, "empty_db"),
        (behind_the_key, "blocked"),
        (above_the_cap, "blocked"),
        (offline, "runtime_offline"),
        (unheard, "runtime_stale"),
        (paused, "runtime_paused"),
        (without_owner, "runtime_without_owner"),
        (of_another_daemon, "runtime_foreign"),
    ],
)
def test_a_request_that_gets_nothing_leaves_one_record(
    site: Site, situation: Callable[[Site], None], outcome: str
) -> None:
    """C-31: each situation leaves exactly one record, and it names the rule."""
    situation(site)
    before = records(site.runtime)
    assert poll(site) == []
    assert [kept for kept in records(site.runtime) if kept not in before] == [(outcome, 1)]


def test_a_delivery_and_a_known_emptiness_leave_one_record_each(site: Site) -> None:
    """C-31: a delivery is kept by its event alone; the second of two idle polls is known without the database."""
    site.queued()
    assert len(poll(site)) == 1
    assert records(site.runtime) == [("claim", 1)]
    poll(site), poll(site)
    assert records(site.runtime) == [("empty_db", 1), ("empty_cache_hit", 1), ("claim", 1)]


def test_a_lost_delivery_leaves_its_event_alone(site: Site) -> None:
    """C-31: what is delivered again is `reclaimed_dispatched`, kept as the event of that delivery."""
    task = dispatch(site.queued(), now=timezone.now() - timedelta(seconds=100))
    assert poll(site) == [str(task.id)]
    assert records(site.runtime) == [("claim", 1), ("redeliver", 1)]


def test_a_full_batch_and_an_unknown_machine_are_told_apart(site: Site) -> None:
    """C-31: the neighbour whose work had no room in the answer, and an id that is nobody's, have their own outcomes."""
    neighbour = factories.make_runtime(site.workspace, daemon_id=site.runtime.daemon_id, provider="other")
    stranger = uuid4()
    site.queued(priority=3)
    factories.enqueue(factories.make_agent(neighbour))
    assert len(poll(site, site.runtime, neighbour, stranger, room=1)) == 1
    assert records(site.runtime) == [("claim", 1)]
    assert records(neighbour) == [("batch_full", 1)]
    assert records(stranger) == [("runtime_unknown", 1)]


def test_a_promotion_that_fails_is_the_one_record_of_its_request(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-31: the request is not also kept as an empty one, which would say that nothing was there."""

    def broken(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError("gone")

    site.queued(status="deferred", fire_at=datetime.now(UTC) - timedelta(seconds=1))
    monkeypatch.setattr(promote, "run", broken)
    assert poll(site) == []
    assert records(site.runtime) == [("error_promote_deferred", 1)]


def test_a_claim_without_time_takes_nothing_and_says_so(site: Site) -> None:
    """C-31, D19: nothing was committed, so nothing has to be undone; one record tells of it."""
    task = site.queued()
    with pytest.raises(UnavailableError):
        poll(site, timeout_ms=0)
    assert records(site.runtime) == [("error_claim", 1)]
    assert AgentTask.objects.get(id=task.id).deliveries == 0


def test_an_answer_that_cannot_be_built_is_kept_and_its_neighbour_goes_out(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-31, section 6 of the design: the one is queued again and kept as an error, the other is delivered."""
    bad, good = site.queued(priority=3), site.queued(issue=site.more_issue())
    build = claim_answer.build

    def brittle(task: Any, *rest: Any) -> Any:
        if task["id"] == str(bad.id):
            raise claim_answer.AnswerError("no luck")
        return build(task, *rest)

    monkeypatch.setattr(claim_answer, "build", brittle)
    assert poll(site) == [str(good.id)]
    assert AgentTask.objects.get(id=bad.id).status == "queued"
    assert ("error_claim_answer", 1) in records(site.runtime)


def test_an_agent_of_another_workspace_ends_the_task(site: Site) -> None:
    """C-31: a row that can never be answered is ended by its rule, with one record."""
    task = site.queued(issue=None, serial_key=None)
    elsewhere = factories.make_workspace()
    Agent.objects.filter(id=site.agent.id).update(workspace=elsewhere)
    assert poll(site) == []
    row = AgentTask.objects.get(id=task.id)
    assert (row.status, row.failure_reason) == ("failed", "invalid_task_identity")
    assert ("error_invalid_task_identity", 1) in records(site.runtime)


@pytest.mark.parametrize(
    ("where", "name"), [(empty_claims, "store"), (decisions, "note"), (events, "announce"), (empty_claims, "bump")]
)
def test_no_book_keeping_loses_what_was_claimed(
    site: Site, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    """C-32: the row is committed as dispatched, so its answer goes out whatever fails beside it.

    Seen red with each of the three guards in `services/claim.py` taken out: the daemon got an error, and the row
    stood as dispatched until its window was over.
    """
    idle = factories.make_runtime(site.workspace, daemon_id=site.runtime.daemon_id, provider="idle")
    again = dispatch(site.queued(), now=timezone.now() - timedelta(seconds=100))
    fresh = site.queued(issue=site.more_issue())

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(where, name, broken)
    assert sorted(poll(site, site.runtime, idle)) == sorted([str(again.id), str(fresh.id)])


def test_a_chat_is_answered_one_task_at_a_time(site: Site) -> None:
    """C-07: two queued tasks of one chat: the second waits for the end of the first, another chat does not."""
    keys = ["chat:a", "chat:a", "chat:b"]
    first, second, other = transitions.enqueue(
        [factories.task_values(site.agent, serial_key=key) for key in keys], actor="user:test"
    )
    assert sorted(poll(site)) == sorted([str(first.id), str(other.id)])
    failed(start(AgentTask.objects.get(id=first.id)))
    assert poll(site) == [str(second.id)]
