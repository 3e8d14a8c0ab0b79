"""One PostgreSQL of our own: made on first use, reached by a unix socket only, gone when the launcher is gone."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from multica.embedded import process
from multica.embedded.errors import EmbeddedError, StartFailed
from multica.embedded.identity import Identity

log = logging.getLogger(__name__)

USER, DATABASE = "app", "multica"
SOCKET = ".s.PGSQL.5432"
# Crash recovery of a large write-ahead log takes minutes; giving up earlier would turn one bad stop into an outage.
READY_SECONDS = 900.0
STOP_SECONDS = 60.0
INITDB = [
    f"--username={USER}",
    "--auth-local=trust",
    "--auth-host=scram-sha-256",
    "--encoding=UTF8",
    "--locale-provider=builtin",
    "--locale=C.UTF-8",
]
SETTINGS = {"listen_addresses": "", "max_connections": "200", "log_timezone": "UTC", "timezone": "UTC"}


class Postgres:
    """Lifecycle of one cluster. `start` blocks until it accepts connections, `stop` until it is down.

    `home`: folder of the cluster (0700, of the identity). `sockets`: 0700 folder for the socket. `settings`: extra
    server settings. Two objects on one `home` are kept apart by the caller's lock (`multica.embedded.services`).
    """

    name = "postgres"
    die_signal = signal.SIGINT

    def __init__(
        self, home: Path, sockets: Path, binaries: Path, identity: Identity, settings: dict[str, str] | None = None
    ) -> None:
        self.identity = identity
        self.binaries = binaries
        self.sockets = sockets
        self.major = self._major()
        self.data = home / f"pg{self.major}"
        self.log_file = home / "log" / "postgres.log"
        self.settings = {**SETTINGS, "unix_socket_directories": str(sockets), **(settings or {})}
        self.child: process.Child | None = None

    def url(self, database: str = DATABASE) -> str:
        return f"postgresql://{USER}@/{database}?host={quote(str(self.sockets), safe='')}"

    def start(self) -> None:
        """Makes the cluster if there is none, clears what a crash left, starts, waits, makes the database."""
        self._refuse_other_version()
        if not (self.data / "PG_VERSION").exists():
            self._initdb()
        for attempt in range(1, 6):
            self._clear_leftovers()
            self._spawn()
            if self._wait_ready():
                self._make_database()
                return
            # Backends of a server that was killed hold its memory for a moment after it.
            log.warning("PostgreSQL ended before it was ready (attempt %s of 5)", attempt)
            time.sleep(0.4 * attempt)
        raise StartFailed(f"PostgreSQL does not start; {self.log_file} ends with:\n{process.tail(self.log_file)}")

    def stop(self) -> None:
        if self.child is not None:
            process.stop(self.child, signal.SIGINT, STOP_SECONDS)
            self.child = None

    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def _major(self) -> str:
        answer = process.run([str(self.binaries / "postgres"), "--version"], self.identity)
        text = answer.stdout.decode(errors="replace")
        if answer.returncode or "PostgreSQL" not in text:
            reason = answer.stderr.decode(errors="replace").strip()
            raise EmbeddedError(f"{self.binaries}/postgres cannot run here: {reason or text}")
        return text.split("PostgreSQL)", 1)[1].split(".")[0].strip()

    def _refuse_other_version(self) -> None:
        """Data of another major version, and none of ours, is an upgrade that nobody made: never start empty then."""
        own = self.data / "PG_VERSION"
        for file in [own] if own.exists() else sorted(self.data.parent.glob("pg[0-9]*/PG_VERSION")):
            found, other = file.read_text(encoding="ascii").strip(), file.parent
            if found != self.major:
                raise EmbeddedError(
                    f"{other} holds data of PostgreSQL {found}, the program here is {self.major}. Dump it with the old "
                    f"version (pg_dumpall) and load it into the new one, or use pg_upgrade; then move {other} away."
                )

    def _initdb(self) -> None:
        # Into a folder beside, renamed when whole: a kill in the middle never leaves half a cluster.
        draft = self.data.with_name(f"{self.data.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        self.identity.own(draft)
        sync = ["--no-sync"] if self.settings.get("fsync") == "off" else []
        made = process.run([str(self.binaries / "initdb"), f"--pgdata={draft}", *INITDB, *sync], self.identity, 300)
        if made.returncode:
            raise StartFailed(f"initdb failed:\n{(made.stderr or made.stdout).decode(errors='replace').strip()}")
        draft.rename(self.data)

    def _clear_leftovers(self) -> None:
        """Ends a server of this folder that outlived its launcher, then removes lock files that name nobody of ours.

        The lock on the state directory is held, so a server found here is an orphan. PostgreSQL itself would trust a
        pid that another program has now, and a dead but not yet reaped one.
        """
        for number, seconds in ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)):
            if self._end(number, seconds):
                break
        for leftover in (self.data / "postmaster.pid", self.sockets / SOCKET, self.sockets / f"{SOCKET}.lock"):
            leftover.unlink(missing_ok=True)

    def _end(self, number: int, seconds: float) -> bool:
        for survivor in self._survivors():
            try:
                survivor.send_signal(number)
            except psutil.NoSuchProcess:
                continue
        return process.wait_until(lambda: not self._survivors(), seconds, 0.05)

    def _survivors(self) -> list[psutil.Process]:
        """Live postgres processes of this folder: the server of its lock file and backends that lost their server."""
        return [candidate for candidate in psutil.process_iter() if serves(candidate, self.data)]

    def _spawn(self) -> None:
        self.identity.own(self.log_file.parent)
        rotate(self.log_file)
        argv = [str(self.binaries / "postgres"), "-D", str(self.data)]
        for key, value in self.settings.items():
            argv += ["-c", f"{key}={value}"]
        with self.log_file.open("ab") as output:
            self.child = process.spawn(argv, self.identity, output=output, die_signal=self.die_signal)

    def _wait_ready(self) -> bool:
        assert self.child is not None
        begun = told = time.monotonic()
        while self.child.poll() is None:
            if self._status() == "ready":
                return True
            now = time.monotonic()
            if now - begun > READY_SECONDS:
                self.stop()
                raise StartFailed(f"PostgreSQL was not ready after {READY_SECONDS:.0f} s; see {self.log_file}")
            if now - told > 5:
                told = now
                log.warning(
                    "PostgreSQL is recovering from an unclean stop, %.0f s so far; this ends by itself", now - begun
                )
            time.sleep(0.01)
        return False

    def _status(self) -> str:
        try:
            lines = (self.data / "postmaster.pid").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return lines[7].strip() if len(lines) > 7 else ""

    def _make_database(self) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if not known:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))


def serves(candidate: psutil.Process, data: Path) -> bool:
    """True for a live process of PostgreSQL whose working directory is the cluster, which holds for all of them."""
    try:
        if not candidate.name().startswith("postgres") or candidate.status() == psutil.STATUS_ZOMBIE:
            return False
        return str(candidate.cwd()) == os.path.realpath(data)
    except psutil.Error:
        return False  # of another user, or gone meanwhile: not ours


def rotate(path: Path, limit: int = 20 * 1024 * 1024) -> None:
    """Keeps one old log: a stack that runs for months must not fill the disk with what nobody reads."""
    if path.exists() and path.stat().st_size > limit:
        os.replace(path, path.with_suffix(".log.1"))
