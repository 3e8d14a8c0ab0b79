"""The embedded services of one state directory, under one lock."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from multica.embedded import binaries, runfile
from multica.embedded.errors import EmbeddedError, StackBusy
from multica.embedded.identity import Identity, choose
from multica.embedded.postgres import SOCKET, Postgres
from multica.embedded.valkey import Valkey

# sockaddr_un holds this many bytes before the closing NUL.
SOCKET_PATH_LIMIT = 103 if sys.platform == "darwin" else 107


class Services:
    """PostgreSQL, Valkey or both, started and stopped together. Use as a context manager, from the main thread.

    `state`: the state directory (created 0700). `postgres`, `valkey`: which to run. `wait`: seconds to wait for a
    process that owns the directory before StackBusy. `settings`: extra PostgreSQL settings.
    """

    def __init__(
        self,
        state: Path,
        *,
        postgres: bool = True,
        valkey: bool = True,
        wait: float = 5.0,
        settings: dict[str, str] | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.state = state
        self.wait = wait
        self.want = (postgres, valkey)
        self.settings = settings
        self.identity = identity
        self.postgres: Postgres | None = None
        self.valkey: Valkey | None = None
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        self._lock = take_lock(self.state, self.wait)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self.stop()

    def _start(self) -> None:
        if not any(self.want):
            return
        self.identity = self.identity or choose()
        home = self.identity.own(self.identity.data_home(self.state))
        sockets = socket_folder(home, self.identity)
        want_postgres, want_valkey = self.want
        if want_postgres:
            programs = binaries.postgres_bin(self.identity, home)
            self.postgres = Postgres(home, sockets, programs, self.identity, self.settings)
            self.postgres.start()
        if want_valkey:
            self.valkey = Valkey(home, sockets, binaries.valkey_server(self.identity, home), self.identity)
            self.valkey.start()

    def stop(self) -> None:
        """Idempotent. Valkey first: what still runs then sees a missing cache, not a missing database."""
        for service in (self.valkey, self.postgres):
            if service is not None:
                service.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def running(self) -> list[Postgres | Valkey]:
        return [service for service in (self.postgres, self.valkey) if service is not None]

    def addresses(self) -> dict[str, str]:
        """Environment for children: the variables of the services that run here."""
        found = {}
        if self.postgres is not None:
            found["DATABASE_URL"] = self.postgres.url()
        if self.valkey is not None:
            found["REDIS_URL"] = self.valkey.url()
        return found


def take_lock(state: Path, wait: float) -> IO[str]:
    """Exclusive lock on the state directory, held while the returned file is open and freed by any death."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = (state / "lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise EmbeddedError(
            f"{state} cannot be used as state directory ({error.strerror}); set MULTICA_STATE_DIR"
        ) from None
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > end:
                handle.close()
                raise StackBusy(busy_text(state)) from None
            time.sleep(0.05)
            continue
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        return handle


def busy_text(state: Path) -> str:
    running = runfile.read(state)
    if running and running.get("http_url"):
        return f"This stack already runs at {running['http_url']} (process {running['pid']}, state in {state})."
    holder = (state / "lock").read_text(encoding="utf-8").strip() or "unknown"
    return f"Process {holder} uses {state} right now. Wait for it, stop it, or set MULTICA_STATE_DIR to another folder."


def socket_folder(home: Path, identity: Identity) -> Path:
    """A 0700 folder whose socket paths fit: beside the data, else in the user's runtime or temporary folder."""
    word = hashlib.sha256(str(home).encode()).hexdigest()[:12]
    owner = identity.uid if identity.uid is not None else os.geteuid()
    short = f"multica-{owner}-{word}"
    candidates = [home / "run", Path(tempfile.gettempdir()) / short, Path("/tmp") / short]
    if os.environ.get("XDG_RUNTIME_DIR") and identity.uid is None:
        candidates.insert(1, Path(os.environ["XDG_RUNTIME_DIR"]) / short)
    for folder in candidates:
        if len(os.fsencode(folder / f"{SOCKET}.lock")) <= SOCKET_PATH_LIMIT:
            return identity.own(folder)
    raise EmbeddedError(
        f"Socket paths under {home} are longer than the {SOCKET_PATH_LIMIT} bytes that this system allows: "
        "set MULTICA_STATE_DIR to a shorter path."
    )
