"""Before Django is touched: services for the run, then the settings that read their addresses."""

from __future__ import annotations

import os
from collections.abc import Iterator

import django
import pytest
import redis

from tests.support.services import RUN

RUN.begin()
os.environ["DJANGO_SETTINGS_MODULE"] = "multica.settings"
# A loaded machine may take longer than the product's quarter of a second for an answer, and a breaker that opens for
# it would fail whatever test comes next. Tests of that bound set it themselves.
os.environ.setdefault("MULTICA_REDIS_TIMEOUT", "3")
django.setup()
# Workers inherit the environment, and with this name in it they would read their settings before their own share of
# the services is in there: all of them would meet in one Valkey database.
del os.environ["DJANGO_SETTINGS_MODULE"]


def pytest_unconfigure(config: pytest.Config) -> None:
    RUN.end()


@pytest.fixture(scope="session")
def redis_url() -> str:
    """Address of this worker's own Valkey database."""
    return os.environ["REDIS_URL"]


@pytest.fixture(autouse=True)
def _clean_redis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that uses the database starts with an empty Valkey database too: keys name rows that are gone.

    And with the client of a new process: a breaker that the test before opened is not this test's.
    """
    monkeypatch.setattr("queue_app.redis._door", None)
    uses = {"db", "transactional_db", "redis_url"} & set(request.fixturenames)
    if uses or request.node.get_closest_marker("django_db"):
        with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
            client.flushdb()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """The claim's own connections are given back before the test database is dropped."""
    yield
    from queue_app.sql import door

    door.close()
