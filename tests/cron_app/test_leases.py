"""One plan, one runner: the table as lock, audit and retry."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from cron_app import transitions
from cron_app.domain.jobspec import JobSpec, Scope
from cron_app.models import CronExecution
from cron_app.services import tick as ticking
from cron_app.services.execute import Run, execute
from cron_app.services.tick import DuplicateJobError, Ticker
from tests.support.together import together
from tests.support.wait import until

SECOND = timedelta(seconds=1)
PLAN = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
GLOBAL = Scope()


def job(**fields: Any) -> JobSpec:
    values: dict[str, Any] = {
        "name": "j",
        "handler": lambda run: {"rows_affected": 1},
        "cadence": timedelta(minutes=5),
        "run_timeout": 60 * SECOND,
        "stale_timeout": 100 * SECOND,
        "heartbeat_interval": 30 * SECOND,
        "retry_backoff": (60 * SECOND, 300 * SECOND),
    }
    return JobSpec(**{**values, **fields})


def claim(spec: JobSpec, now: datetime | None = None, runner: str = "r") -> CronExecution | None:
    return transitions.claim(spec, GLOBAL, PLAN, runner=runner, now=now)


def claimed(spec: JobSpec, now: datetime | None = None, runner: str = "r") -> CronExecution:
    execution = claim(spec, now, runner)
    assert execution is not None
    return execution


@pytest.mark.django_db
class TestLeases:
    now = timezone.now()

    def later(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def test_a_plan_has_one_row(self) -> None:
        """K-08, K-10, K-19: the key has no hole, the row says who, when, which attempt."""
        execution = claimed(job(), self.now)
        assert claim(job(), self.now) is None
        assert (execution.status, execution.attempt, execution.runner_id) == ("RUNNING", 1, "r")
        assert execution.stale_after == self.later(100)
        with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO sys_cron_executions SELECT (jsonb_populate_record(e, jsonb_build_object('id', "
                "gen_random_uuid()))).* FROM sys_cron_executions e"
            )

    def test_a_failure_is_tried_again_after_its_wait_and_rests_at_the_limit(self) -> None:
        """K-13, K-14: 60 s, 300 s, then FAILED for good."""
        spec = job()
        moment = 0
        for attempt, wait in ((1, 60), (2, 300), (3, None)):
            execution = claimed(spec, self.later(moment))
            assert execution.attempt == attempt
            ended = transitions.fail(
                execution, "handler_error", "x", wait=spec.wait_after(attempt), now=self.later(moment)
            )
            assert ended is not None
            assert ended.next_retry_at == (None if wait is None else self.later(moment + wait))
            if wait is None:
                break
            assert claim(spec, self.later(moment + wait - 1)) is None
            moment += wait
        assert claim(spec, self.later(10**6)) is None
        assert CronExecution.objects.get().status == "FAILED"

    def test_a_heartbeat_keeps_a_long_run(self) -> None:
        """K-11: longer than the lease with heartbeats: not stolen."""
        execution = claimed(job(), self.now)
        for seconds in (60, 120, 180):
            assert claim(job(), self.later(seconds)) is None
            assert transitions.heartbeat(execution, 100 * SECOND, now=self.later(seconds)) is not None
        assert claim(job(), self.later(279)) is None

    def test_an_expired_lease_is_stolen_and_the_old_holder_is_deaf(self) -> None:
        """K-12: heartbeat, success and failure of the old token change nothing."""
        old = claimed(job(), self.now)
        new = claimed(job(), self.later(101), "other")
        assert (new.id, new.attempt, new.runner_id) == (old.id, 2, "other")
        assert new.lease_token != old.lease_token
        assert transitions.heartbeat(old, 100 * SECOND) is None
        assert transitions.succeed(old, {}) is None
        assert transitions.fail(old, "x", "x", wait=SECOND) is None
        ended = transitions.succeed(new, {"rows_affected": 7})
        assert ended is not None
        assert (ended.status, ended.rows_affected) == ("SUCCESS", 7)

    def test_a_forbidden_takeover_never_happens(self) -> None:
        """K-17: neither while the row runs nor after it was closed as abandoned; it rests visibly for a person."""
        spec = job(allow_stale_reentry=False)
        claimed(spec, self.now)
        assert claim(spec, self.later(10**6)) is None
        (row,) = transitions.close_abandoned(["j"], now=self.later(101))
        assert (row.status, row.error_code) == ("FAILED", "stale_timeout")
        assert claim(spec, self.later(10**6)) is None

    def test_a_failure_that_was_told_is_retried_even_so(self) -> None:
        """K-17: the handler itself said that it ended, so nothing can still be running."""
        spec = job(allow_stale_reentry=False, retry_backoff=())
        assert transitions.fail(claimed(spec, self.now), "handler_error", "x", wait=0 * SECOND, now=self.now)
        assert claimed(spec, self.later(1)).attempt == 2

    def test_abandoned_rows_are_closed_once_they_are_stale(self) -> None:
        """K-12: at 99 s not, at 101 s; only of the jobs named."""
        claimed(job(), self.now)
        assert transitions.close_abandoned(["j"], now=self.later(99)) == []
        assert transitions.close_abandoned(["other"], now=self.later(101)) == []
        assert len(transitions.close_abandoned(["j"], now=self.later(101))) == 1

    def test_large_results_and_messages_are_cut(self) -> None:
        """An oversized result never leaves its row running."""
        ended = transitions.succeed(claimed(job()), {"rows_affected": 3, "text": "x" * 20000})
        assert ended is not None
        assert (ended.status, ended.rows_affected, ended.result["truncated"]) == ("SUCCESS", 3, True)
        other = transitions.claim(job(), GLOBAL, PLAN + SECOND, runner="r")
        assert other is not None
        failed = transitions.fail(other, "x", "é\x00" * 9000, wait=SECOND)
        assert failed is not None
        assert failed.error_msg is not None
        assert len(failed.error_msg.encode()) <= 4000


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("sets", "name"),
    [
        ("attempt = 0", "attempt"),
        ("attempt = 4", "attempt"),
        ("status = 'LOST', finished_at = now()", "status"),
        ("duration_ms = -1", "duration"),
        ("stale_after = NULL", "lease"),
        ("finished_at = now()", "lease"),
    ],
)
def test_the_schema_refuses_rows_that_cannot_be(sets: str, name: str) -> None:
    """K-08, K-10: the table's own guards."""
    claimed(job())
    with pytest.raises(IntegrityError, match=name), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE sys_cron_executions SET {sets}")


# ------------------------------------------------------------------------------------------------------ real threads


@pytest.fixture
def tickers() -> Iterator[list[Ticker]]:
    made: list[Ticker] = []
    yield made
    for ticker in made:
        ticker.close()


@pytest.mark.django_db(transaction=True)
def test_two_replicas_never_run_one_plan_twice(tickers: list[Ticker]) -> None:
    """K-06, K-07, K-09: twenty plans, three replicas ticking at once, each handler call counted."""
    calls: Counter[datetime] = Counter()
    lock = threading.Lock()

    def handler(run: Run) -> dict[str, Any]:
        with lock:
            calls[run.execution.plan_time] += 1
        return {}

    spec = job(handler=handler)
    tickers.extend(Ticker([spec]) for _ in range(3))
    start = timezone.now()
    for number in range(20):
        moment = start + number * timedelta(minutes=5)
        results = together(*[partial(_tick_and_wait, ticker, moment) for ticker in tickers])
        assert not [result for result in results if isinstance(result, Exception)]
    assert set(calls.values()) == {1}
    assert len(calls) == 20
    assert CronExecution.objects.filter(status="SUCCESS").count() == 20


def _tick_and_wait(ticker: Ticker, moment: datetime) -> None:
    ticker.tick(moment)
    ticker.wait(20)


def _succeeded(name: str) -> int:
    return CronExecution.objects.filter(job_name=name, status="SUCCESS").count()


@pytest.mark.django_db(transaction=True)
def test_a_long_handler_delays_no_other_job(tickers: list[Ticker]) -> None:
    """K-09: the other job runs tick after tick while one hangs."""
    release = threading.Event()
    ran: list[datetime] = []

    def quick(run: Run) -> dict[str, Any]:
        ran.append(run.execution.plan_time)
        return {}

    def slow(run: Run) -> dict[str, Any]:
        release.wait(20)
        return {}

    ticker = Ticker([job(name="slow", handler=slow, stale_timeout=7200 * SECOND), job(name="quick", handler=quick)])
    tickers.append(ticker)
    start = timezone.now()
    try:
        for number in range(3):
            ticker.tick(start + number * timedelta(minutes=5))
            # Stored, not only run: the next tick is minutes later by its clock and would find the lease over.
            until(lambda seen=number: _succeeded("quick") > seen, what="the quick job's end")
        assert len(ran) == 3
        assert CronExecution.objects.get(job_name="slow").status == "RUNNING"
    finally:
        release.set()
    ticker.wait(20)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("raises", "code"),
    [(ValueError("no"), "handler_error"), (KeyError("k"), "handler_panic"), (ZeroDivisionError(), "handler_error")],
)
def test_what_a_handler_raises_is_its_failure(raises: Exception, code: str) -> None:
    """K-13, K-14: stored with a code, a text and the time of the next attempt."""

    def handler(run: Run) -> dict[str, Any]:
        raise raises

    spec = job(handler=handler)
    ended = execute(Run(spec, claimed(spec), threading.Event()))
    assert ended is not None
    assert (ended.status, ended.error_code) == ("FAILED", code)
    assert ended.error_msg
    assert ended.next_retry_at is not None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("reason", ["lost", "timeout", "stop"])
def test_a_handler_learns_that_it_must_stop(reason: str) -> None:
    """K-12: at its next check; a result for a lost lease counts for nothing."""
    time = [0.0]
    stop = threading.Event()

    def handler(run: Run) -> dict[str, Any]:
        if reason == "lost":
            with connection.cursor() as cursor:
                cursor.execute("UPDATE sys_cron_executions SET lease_token = gen_random_uuid()")
            assert not run.renew()
        elif reason == "timeout":
            time[0] += 61
            assert not run.renew()
        else:
            stop.set()
        run.check()
        return {}

    spec = job(handler=handler)
    ended = execute(Run(spec, claimed(spec), stop, clock=lambda: time[0]))
    code = {"lost": None, "timeout": "run_timeout", "stop": "canceled"}[reason]
    assert (ended and ended.error_code) == code


@pytest.mark.django_db(transaction=True)
def test_the_lease_is_renewed_while_a_handler_works() -> None:
    """K-11: by the heartbeat thread, without the handler's help."""
    spec = job(run_timeout=20 * SECOND, stale_timeout=30 * SECOND, heartbeat_interval=0.05 * SECOND)
    first = claimed(spec)

    def handler(run: Run) -> dict[str, Any]:
        until(lambda: CronExecution.objects.get().heartbeat_at != first.heartbeat_at, what="a heartbeat")
        return {}

    spec = job(handler=handler, run_timeout=20 * SECOND, stale_timeout=30 * SECOND, heartbeat_interval=0.05 * SECOND)
    ended = execute(Run(spec, first, threading.Event()))
    assert ended is not None
    assert ended.status == "SUCCESS"


@pytest.mark.django_db(transaction=True)
def test_one_jobs_trouble_is_its_own(tickers: list[Ticker]) -> None:
    """K-09: scopes that raise leave the other jobs alone; job names must differ."""

    def broken() -> tuple[Scope, ...]:
        raise RuntimeError("no scopes")

    ticker = Ticker([job(name="a", scopes=broken), job(name="b")])
    tickers.append(ticker)
    assert ticker.tick() == 1
    assert [execution.job_name for execution in ticker.wait(20)] == ["b"]
    with pytest.raises(DuplicateJobError):
        Ticker([job(), job()])
    assert ticking.WORKERS > 1
