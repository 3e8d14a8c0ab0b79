"""One daemon a profile: a lock on the pid file, which dies with the process, whatever way it dies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from daemon_client.config import DaemonSettings, write_private
from daemon_client.errors import AlreadyRunning

try:
    import fcntl
except ImportError:  # Windows: the port alone keeps a second daemon out
    fcntl = None  # type: ignore[assignment]


def state_path(home: Path) -> Path:
    return home / "daemon.json"


def read_state(home: Path) -> dict[str, Any]:
    """What the last daemon of this profile wrote about itself (pid, port); empty when there is nothing to read."""
    try:
        state = json.loads(state_path(home).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def read_pid(home: Path) -> int | None:
    try:
        return int((home / "daemon.pid").read_text("utf-8"))
    except (OSError, ValueError):
        return None


class Singleton:
    """Held for the life of a daemon. Entering raises AlreadyRunning with the pid of the one that holds it."""

    def __init__(self, settings: DaemonSettings) -> None:
        self._settings = settings
        self._file: IO[str] | None = None

    def __enter__(self) -> Singleton:
        home = self._settings.home
        home.mkdir(parents=True, exist_ok=True)
        # Opened without truncation: the holder's pid must stay readable for the one that is refused.
        file = open(os.open(home / "daemon.pid", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+", encoding="utf-8")
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            port = read_state(home).get("port")
            raise AlreadyRunning(
                read_pid(home), port if isinstance(port, int) else self._settings.health_port
            ) from None
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file
        return self

    def announce(self, port: int) -> None:
        """Write down where this daemon listens, for status and stop."""
        state = {"pid": os.getpid(), "port": port, "server_url": self._settings.server_url}
        write_private(state_path(self._settings.home), json.dumps(state).encode())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        state_path(self._settings.home).unlink(missing_ok=True)
        if self._file:
            # The name goes before the lock: nobody may lock a file that is about to vanish under a successor.
            (self._settings.home / "daemon.pid").unlink(missing_ok=True)
            self._file.close()
