"""Two web replicas over one database and one Valkey, as real processes, for what only real sockets can show."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.socket_client import Daemon
from tests.support.stack import Site


@pytest.fixture(scope="session")
def pair() -> Iterator[Site]:
    """Two replicas at full-length windows, so no sweep meddles."""
    folder = Path(tempfile.mkdtemp(prefix="pair-"))
    try:
        with Site(folder / "site", scale=1.0, replicas=2) as running:
            yield running
            running.command("verifyhistory")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def new_daemon(pair: Site) -> Iterator[Callable[[], Daemon]]:
    """Makes a daemon of an account of its own; its sockets are closed after the test."""
    with ExitStack() as stack:

        def make() -> Daemon:
            daemon = Daemon(pair, pair.account())
            stack.callback(daemon.close)
            return daemon

        yield make


@pytest.fixture
def daemon(new_daemon: Callable[[], Daemon]) -> Daemon:
    return new_daemon()
