"""`manage.py up`: one command starts everything, and nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from multica.management.commands.up import listen
from tests.support import wait
from tests.support.stacks import Up, get, gone, manage, up

# One worker runs all of them, so that they share one stack.
pytestmark = [pytest.mark.embedded, pytest.mark.timeout(180), pytest.mark.xdist_group("up")]

BARE = ("--without", "worker", "--without", "sweeper")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    state = tmp_path_factory.mktemp("up") / "state"
    with up(state) as running:
        running.ready()
        yield running
        pids = running.pids()
        assert running.stop(signal.SIGTERM) == 0, running.output()
    assert running.lines[-1] == "up       | stopped", running.output()
    gone(pids, 1)
    assert not (state / "run.json").exists()


def test_ready_line_names_a_server_that_answers(stack: Up) -> None:
    url = stack.ready()
    assert get(f"{url}/health") == (200, {"status": "ok"})
    checks = {"database": "ok", "migrations": "ok", "redis": "ok"}
    assert get(f"{url}/ready") == (200, {"status": "ready", "checks": checks})
    assert set(stack.pids()) == {"up", "postgres", "valkey", "web", "sweeper", "worker"}


def test_other_commands_find_the_stack_by_themselves(stack: Up) -> None:
    stack.ready()
    done = manage(stack.state, "shell", "-v0", "-c", "from django.db import connection as c; c.ensure_connection()")
    assert done.returncode == 0, done.stderr
    assert stack.pids()["postgres"], "and it is still the same one"
    assert "unapplied" not in manage(stack.state, "migrate", "--check").stdout


def test_second_up_on_one_state_is_refused_with_the_address_of_the_first(stack: Up) -> None:
    url = stack.ready()
    done = manage(stack.state, "up")
    assert done.returncode == 1
    assert f"already runs at {url}" in done.stderr
    assert get(f"{url}/health")[0] == 200


def test_second_stack_takes_the_next_port_and_its_own_data(stack: Up, tmp_path: Path) -> None:
    first = stack.ready()
    with up(tmp_path / "state", *BARE) as second:
        other = second.ready()
        assert other != first
        assert get(f"{other}/ready")[0] == get(f"{first}/ready")[0] == 200
        assert second.run_json()["database_url"] != stack.run_json()["database_url"]


@pytest.mark.parametrize("name", ["postgres", "valkey", "web", "sweeper"])
def test_killed_part_comes_back(stack: Up, name: str) -> None:
    url = stack.ready()
    before = stack.pids()[name]
    os.kill(before, signal.SIGKILL)
    wait.until(lambda: stack.pids()[name] != before, 30, f"{name} was not started again")
    wait.until(lambda: get(f"{url}/ready")[0] == 200, 30, "not ready again")
    assert any(f"{name} ended (killed by SIGKILL)" in line for line in stack.lines)


def test_killed_up_leaves_no_process(tmp_path: Path) -> None:
    with up(tmp_path / "state") as running:
        running.ready()
        pids = running.pids()
        running.process.kill()
        gone(pids)


def test_stop_while_it_starts(tmp_path: Path) -> None:
    with up(tmp_path / "state") as running:
        running.says("own postgres and valkey")
        pid = int((tmp_path / "state" / "pg18" / "postmaster.pid").read_text().split()[0])
        assert running.stop() == 0
        gone({"postgres": pid}, 1)


def test_taken_port_that_was_asked_for_is_refused_in_words(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with up(tmp_path / "state", "--port", str(port)) as running:
            assert "Give another with --port" in running.says(f"cannot listen on 127.0.0.1:{port}")
            assert running.process.wait(10) == 1


def test_default_port_moves_on_when_it_is_taken() -> None:
    with listen("127.0.0.1", 0) as first, listen("127.0.0.1", 0) as second:
        assert first.getsockname()[1] < second.getsockname()[1]


def test_given_addresses_are_used_and_stay_out_of_files(tmp_path: Path) -> None:
    urls = {"DATABASE_URL": os.environ["DATABASE_URL"], "REDIS_URL": os.environ["REDIS_URL"]}
    with up(tmp_path / "state", *BARE, **urls) as running:
        running.says("services of DATABASE_URL and REDIS_URL")
        running.ready()
        written = (tmp_path / "state" / "run.json").read_text()
        assert set(running.pids()) == {"up", "web"}
        assert json.loads(written)["database_url"] is json.loads(written)["redis_url"] is None
        # A command without the address must not start an empty database beside the real one.
        refused = manage(tmp_path / "state", "migrate", "--check")
        assert refused.returncode == 1
        assert "DATABASE_URL" in refused.stderr
        assert manage(tmp_path / "state", "migrate", "--check", **urls).returncode == 0
    with psycopg.connect(urls["DATABASE_URL"]) as connection:
        connection.execute("SELECT 1")


def test_command_without_a_stack_has_services_for_its_own_time(tmp_path: Path) -> None:
    state = tmp_path / "state"
    code = (
        "from django.db import connection as c; c.ensure_connection(); print(c.info.backend_pid if 0 else 'connected')"
    )
    done = manage(state, "shell", "-v0", "-c", code)
    assert done.stdout.strip().endswith("connected"), done.stderr
    assert not (state / "run.json").exists()
    assert not (state / "pg18" / "postmaster.pid").exists()
