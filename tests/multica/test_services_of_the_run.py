"""The services of a test run: each worker has its share, and a killed run leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import redis
from django.db import connection

from tests.support.services import sweep, with_database
from tests.support.stacks import ROOT, environment, gone

PROGRAM = r"""
import sys
from tests.support.services import RUN
RUN.begin()
pids = [str(service.child.pid) for service in RUN.services.running()]
sys.stdout.write(" ".join([str(RUN.folder), *pids]) + "\n")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.django_db
def test_each_worker_has_its_own_database(worker_id: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database(), current_setting('application_name')")
        name, application = cursor.fetchone()
    assert name == ("test_multica" if worker_id == "master" else f"test_multica_{worker_id}")
    assert application == "multica-command"


def test_each_worker_has_its_own_valkey_database(redis_url: str, worker_id: str) -> None:
    number = 0 if worker_id == "master" else int(worker_id.removeprefix("gw")) + 1
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()
        assert client.connection_pool.connection_kwargs.get("db", 0) == number


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("unix:///run/v.sock?db=0", "unix:///run/v.sock?db=3"),
        ("redis://:pw@cache:6379/0", "redis://:pw@cache:6379/3"),
        ("redis://cache:6379", "redis://cache:6379/3"),
    ],
)
def test_number_of_the_database_is_set_in_every_form_of_the_address(url: str, other: str) -> None:
    assert with_database(url, 3) == other


@pytest.mark.embedded
def test_killed_run_leaves_nothing() -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert run.stdout is not None
    folder, *pids = run.stdout.readline().decode().split()
    assert Path(folder).is_dir()
    assert len(pids) == 2
    run.kill()
    run.communicate()
    gone(dict(zip(("postgres", "valkey"), map(int, pids), strict=True)))
    sweep()
    assert not Path(folder).exists()
