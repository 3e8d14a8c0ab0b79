from __future__ import annotations

import pytest
import redis
from django.db import connection


@pytest.mark.django_db
@pytest.mark.parametrize("n", range(4))
def test_each_worker_has_its_own_database(n: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("select current_database(), current_setting('application_name')")
        name, application = cursor.fetchone()
    assert name.startswith("test_multica")
    assert application == "multica-command"


def test_redis_is_there(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()
