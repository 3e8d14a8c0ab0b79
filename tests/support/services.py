"""PostgreSQL and Valkey for one test run: started by the process that was called, shared by its workers, gone with it.

The services die with the pytest process however it ends; the folder of a killed run is swept by the next one.
Each worker has its own test database (pytest-django names it after the worker), its own Valkey database and its own
channel prefix.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from multica.embedded.services import Services

PREFIX = "multica-test-"
# A test database is never worth a wait for the disk.
FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
# Marks that the services belong to this run, for workers that inherit the environment.
OWNED = "MULTICA_TEST_STATE"


class TestRun:
    """The services of this run, if this process is the one that owns them."""

    __test__ = False

    def __init__(self) -> None:
        self.services: Services | None = None
        self.folder: Path | None = None

    def begin(self) -> None:
        """Prepares the environment before Django's settings are imported. Idempotent; workers only take their share."""
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        if not worker and OWNED not in os.environ:
            self._own()
        index = int(worker.removeprefix("gw") or 0) + 1 if worker else 0
        os.environ["MULTICA_CHANNEL_PREFIX"] = f"test-{os.environ['MULTICA_TEST_RUN']}-{worker or 'main'}"
        os.environ["REDIS_URL"] = with_database(os.environ["MULTICA_TEST_REDIS_URL"], index)

    def _own(self) -> None:
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        os.environ[OWNED] = os.environ["MULTICA_STATE_DIR"] = str(self.folder)
        os.environ["MULTICA_TEST_RUN"] = self.folder.name.removeprefix(PREFIX)
        need = ("DATABASE_URL" not in os.environ, "REDIS_URL" not in os.environ)
        if any(need):
            self.services = Services(self.folder, postgres=need[0], valkey=need[1], settings=FAST)
            self.services.__enter__()
            os.environ.update(self.services.addresses())
        os.environ["MULTICA_TEST_REDIS_URL"] = os.environ["REDIS_URL"]

    def end(self) -> None:
        if self.services is not None:
            self.services.stop()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def with_database(url: str, index: int) -> str:
    """The same server with another database number; `index` 0 keeps the address as it is."""
    if not index:
        return url
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}?db={index}"
    return f"{parts.scheme}://{parts.netloc}/{index}"


def sweep() -> None:
    """Removes folders of runs that were killed: nobody holds their lock any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (folder / "lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


RUN = TestRun()
