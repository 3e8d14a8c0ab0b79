"""The empty verdict, against the real Valkey and PostgreSQL."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import psycopg
import pytest
import redis as redis_client
from django.db import connection, transaction

from queue_app import auth, empty_claims, events
from queue_app.models import PersonalAccessToken
from queue_app.services import claim as claim_service
from queue_app.services.claim import claim
from queue_app.services.enqueue import assign
from queue_app.sql import door
from tests.race.harness import started
from tests.support import factories
from tests.support.lifecycle import Site, dispatch

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def valkey(redis_url: str) -> Iterator[redis_client.Redis]:
    with redis_client.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@cache
def secret_of(site: Site) -> str:
    """A personal token of the site's owner, as its daemon would send it."""
    secret, token_hash = auth.mint("mul_")
    PersonalAccessToken.objects.create(token_hash=token_hash, token_prefix=secret[:8], user=site.owner)
    return secret


def poll(site: Site) -> list[dict[str, Any]]:
    runtime = site.runtime
    return claim(
        auth.authenticate(f"Bearer {secret_of(site)}"),
        daemon_id=runtime.daemon_id,
        runtime_ids=[str(runtime.id)],
        max_tasks=5,
        timeout_ms=None,
        door="http",
    )


def keys(site: Site) -> tuple[str, str]:
    runtime = str(site.runtime.id)
    return empty_claims.empty_key(runtime), empty_claims.version_key(runtime)


def statements_of_the_door() -> list[tuple[int, datetime]]:
    """When each connection of the claim's door last began a statement, as the server itself says."""
    with psycopg.connect(**door.parameters("test"), autocommit=True) as own:
        rows = own.execute(
            "SELECT pid, query_start FROM pg_stat_activity WHERE application_name = 'multica-claim' "
            "AND datname = current_database() ORDER BY pid"
        ).fetchall()
    return [(pid, begun) for pid, begun in rows]


@contextmanager
def no_statement_here() -> Iterator[None]:
    def refuse(*_: Any) -> Any:
        raise AssertionError("an idle poll ran a statement")

    with connection.execute_wrapper(refuse):
        yield


def test_idle_polls_run_no_statement(site: Site) -> None:
    """E-01, D8: 600 polls with a warm cache; neither the claim's door nor the caller's own connection is used."""
    assert poll(site) == []
    before = statements_of_the_door()
    assert before, "the first poll looked"
    with no_statement_here():
        for _ in range(600):
            assert poll(site) == []
    assert statements_of_the_door() == before


def test_a_thousand_idle_runtimes_ask_for_each_verdict_once(site: Site) -> None:
    """E-11: machines that poll again and again cost one look each for as long as their verdict lives."""
    runtimes = [factories.make_runtime(site.workspace, daemon_id=str(n), provider=f"p{n}") for n in range(100)]
    ask = [
        {"daemon_id": r.daemon_id, "runtime_ids": [str(r.id)], "max_tasks": 5, "timeout_ms": None, "door": "http"}
        for r in runtimes
    ]
    header = f"Bearer {secret_of(site)}"
    for one in ask:
        claim(auth.authenticate(header), **one)
    before = statements_of_the_door()
    with no_statement_here():
        for one in ask * 10:
            assert claim(auth.authenticate(header), **one) == []
    assert statements_of_the_door() == before


def test_a_task_is_never_answered_from_the_cache(site: Site, valkey: redis_client.Redis) -> None:
    """E-02: a claim that gave a task leaves no verdict, and the next one looks again."""
    site.queued()
    assert len(poll(site)) == 1
    assert valkey.get(keys(site)[0]) is None
    before = statements_of_the_door()
    assert poll(site) == []
    assert statements_of_the_door() != before


def test_a_verdict_lives_three_minutes_and_a_version_a_day(site: Site, valkey: redis_client.Redis) -> None:
    """E-07, E-08: at most 180 s; a read and a bump bring the version's life back to 24 h."""
    events.wake([site.runtime.id])
    assert poll(site) == []
    empty, version = keys(site)
    assert 170_000 < valkey.pttl(empty) <= 180_000
    for act in (lambda: poll(site), lambda: empty_claims.bump([str(site.runtime.id)])):
        valkey.expire(version, 60)
        act()
        assert valkey.ttl(version) > 86_390


def test_a_verdict_ends_when_the_next_task_falls_due(site: Site, valkey: redis_client.Redis) -> None:
    """E-07, D8: a deferred row due in 30 s bounds the verdict to 30 s."""
    site.queued(status="deferred", fire_at=datetime.now(UTC) + timedelta(seconds=30))
    assert poll(site) == []
    assert 20_000 < valkey.pttl(keys(site)[0]) <= 30_000


def test_a_delivery_that_may_be_lost_bounds_the_verdict(site: Site, valkey: redis_client.Redis) -> None:
    """E-07, L-08: the moment of a redelivery is a due moment too."""
    dispatch(site.queued())
    assert poll(site) == []
    assert 80_000 < valkey.pttl(keys(site)[0]) <= 90_000


def test_a_blocked_row_is_not_emptiness(site: Site, valkey: redis_client.Redis) -> None:
    """D8: a queued row that its key holds back leaves no verdict behind."""
    dispatch(site.queued(issue=None, serial_key="k"))
    site.queued(issue=None, serial_key="k")
    assert poll(site) == []
    assert valkey.get(keys(site)[0]) is None


def test_an_older_version_is_a_miss(site: Site, valkey: redis_client.Redis) -> None:
    """E-05: a verdict whose version is not the present one sends the claim to the database."""
    assert poll(site) == []
    empty, version = keys(site)
    valkey.set(version, "7")
    stored = str(valkey.get(empty)).partition("|")
    valkey.set(empty, f"6|{stored[2]}")
    before = statements_of_the_door()
    assert poll(site) == []
    assert statements_of_the_door() != before


def test_an_enqueue_between_look_and_verdict_is_found_by_the_next_poll(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-03, E-06: the version was read before the look, so a verdict that is written too late counts for nothing."""
    looked, go = threading.Event(), threading.Event()
    keep = claim_service._keep_verdicts

    def late(*args: Any) -> None:
        looked.set()
        assert go.wait(20)
        keep(*args)

    monkeypatch.setattr(claim_service, "_keep_verdicts", late)
    polled = started(lambda: poll(site))
    assert looked.wait(20)
    assign(site.issue, site.agent, caller=site.caller)
    go.set()
    assert polled() == []
    monkeypatch.setattr(claim_service, "_keep_verdicts", keep)
    assert len(poll(site)) == 1


def test_insert_then_bump_then_wake(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-04, Q-22: the row is committed before the bump, the bump is done before the wake; a rollback sends neither."""
    trace: list[str] = []
    bump = empty_claims.bump

    def seen(ids: Any) -> None:
        with psycopg.connect(**door.parameters("test"), autocommit=True) as other:
            row = other.execute("SELECT count(*) FROM agent_task_queue").fetchone()
        assert row is not None
        trace.append(f"bump with {row[0]} row")
        bump(ids)

    def hinted(group: str, frame_type: str, payload: dict[str, Any]) -> None:
        trace.append(frame_type)

    monkeypatch.setattr("queue_app.events.empty_claims.bump", seen)
    monkeypatch.setattr("queue_app.events.hint", hinted)
    with transaction.atomic():
        assign(site.issue, site.agent, caller=site.caller)
        transaction.set_rollback(True)
    assert trace == []
    assign(site.issue, site.agent, caller=site.caller)
    assert trace[:2] == ["bump with 1 row", "daemon:task_available"]


@contextmanager
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.monotonic()
    return action(), time.monotonic() - begun


def test_a_redis_that_never_answers_costs_a_quarter_of_a_second_a_call(site: Site, settings: Any) -> None:
    """E-09: slow is a miss; then the breaker rests and the next calls cost nothing."""
    site.queued()
    with silent_server() as address:
        settings.REDIS_URL = address
        settings.MULTICA = {**settings.MULTICA, "REDIS_TIMEOUT": 0.25}
        known, first = timed(lambda: empty_claims.read([str(site.runtime.id)]))
        _, second = timed(lambda: empty_claims.read([str(site.runtime.id)]))
        assert known[str(site.runtime.id)].verdict is None
        assert 0.2 < first < 0.25 + 0.5
        assert second < 0.1
        assert len(poll(site)) == 1


def test_without_redis_everything_is_a_miss(site: Site, settings: Any) -> None:
    """E-10: no address, nothing to configure; every poll looks, and the work is found."""
    settings.REDIS_URL = ""
    for _ in range(2):
        before = statements_of_the_door()
        assert poll(site) == []
        assert statements_of_the_door() != before
    site.queued()
    assert len(poll(site)) == 1


def test_a_lost_bump_costs_no_more_than_the_verdict_lives(
    site: Site, valkey: redis_client.Redis, settings: Any
) -> None:
    """E-12: the server that was to be told is away at the bump; the verdict's own life is the bound."""
    assert poll(site) == []
    good, settings.REDIS_URL = settings.REDIS_URL, "redis://127.0.0.1:1/0"
    site.queued()
    settings.REDIS_URL = good
    empty, _ = keys(site)
    assert poll(site) == []
    assert 0 < valkey.pttl(empty) <= 180_000
    valkey.pexpire(empty, 1)
    while valkey.exists(empty):
        pass
    assert len(poll(site)) == 1
