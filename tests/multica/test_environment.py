"""What the environment may say, and what is refused in words instead of misread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from multica import databases, env
from multica.embedded import runfile


def test_every_window_can_be_overridden_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTICA_TIME_SCALE", "0.05")
    monkeypatch.setenv("MULTICA_PREPARE_LEASE", "60")
    monkeypatch.delenv("MULTICA_REDIS_TIMEOUT")
    values = env.windows()
    assert values["CLAIM_RECOVERY_WINDOW"] == pytest.approx(4.5)
    assert values["PREPARE_LEASE"] == pytest.approx(3.0)
    assert values["REDIS_TIMEOUT"] == 0.25, "a limit for one call, not a window"
    assert (values["MAX_DELIVERIES"], values["CLAIM_BATCH_CAP"]) == (5, 32)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MULTICA_PREPARE_LEASE", "45s"),
        ("MULTICA_PREPARE_LEASE", "0"),
        ("MULTICA_QUEUE_TTL", "nan"),
        ("MULTICA_TIME_SCALE", "-1"),
        ("MULTICA_MAX_DELIVERIES", "2.5"),
    ],
)
def test_unusable_value_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(env.BadSetting, match=name):
        env.windows()


def test_secret_key_is_made_once_by_many_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "state" / "secret_key"
    together = threading.Barrier(8)

    def create(_: int) -> str:
        together.wait(10)
        return env._create_secret(path)

    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(create, range(8)))
    assert len(keys) == 1
    assert len(keys.pop()) > 50
    assert path.stat().st_mode & 0o077 == 0
    assert list(path.parent.iterdir()) == [path]


def test_secret_key_stays_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MULTICA_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("MULTICA_SECRET_KEY", raising=False)
    assert env.secret_key() == env.secret_key()


def test_given_secret_key_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MULTICA_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("MULTICA_SECRET_KEY", "given")
    assert env.secret_key() == "given"
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("unix:///run/v.sock?db=3", "redis+socket:///run/v.sock?virtual_host=3"),
        ("unix:///run/v.sock", "redis+socket:///run/v.sock?virtual_host=0"),
        ("redis://cache:6379/1", "redis://cache:6379/1"),
        ("", "memory://"),
    ],
)
def test_celery_gets_its_own_spelling_of_the_address(url: str, broker: str) -> None:
    assert env.celery_broker(url) == broker


def test_database_address_over_a_socket() -> None:
    entry = databases.database("postgresql://app@/multica?host=%2Fs%2Frun&sslmode=disable", "web")
    assert (entry["NAME"], entry["USER"], entry["HOST"]) == ("multica", "app", "/s/run")
    assert entry["OPTIONS"]["sslmode"] == "disable"
    assert entry["OPTIONS"]["application_name"] == "multica-web"
    assert "statement_timeout=15000" in entry["OPTIONS"]["options"]


def test_database_address_over_the_network_keeps_its_own_options() -> None:
    entry = databases.database("postgres://me:s%40cret@db.example:6432/tasks?options=-c%20work_mem%3D8MB", "sweeper")
    assert (entry["HOST"], entry["PORT"], entry["PASSWORD"]) == ("db.example", "6432", "s@cret")
    assert entry["OPTIONS"]["options"].endswith("work_mem=8MB")


@pytest.mark.parametrize("role", ["web", "ws", "sweeper", "worker"])
def test_every_door_waits_for_a_bounded_time(role: str) -> None:
    assert all(limit > 0 for limit in databases.TIMEOUTS[role])


def test_run_file_of_a_dead_process_is_no_stack(tmp_path: Path) -> None:
    runfile.write(tmp_path, {"database_url": "postgresql://x"})
    assert runfile.service_url(tmp_path, "database_url") == "postgresql://x"
    content = (tmp_path / "run.json").read_text()
    started = (runfile.read(tmp_path) or {})["started"]
    (tmp_path / "run.json").write_text(content.replace(str(started), str(started - 100)))
    assert runfile.read(tmp_path) is None, "the number was given to another process since"
    (tmp_path / "run.json").write_text(content[:20])
    assert runfile.read(tmp_path) is None
