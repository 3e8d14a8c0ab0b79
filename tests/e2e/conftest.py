"""One shared site a worker; what a test may break it starts for itself."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.desk import Desk
from tests.support.stack import Site


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """Short, because unix sockets live in it."""
    folder = Path(tempfile.mkdtemp(prefix="e2e-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def site(short_folder: Path) -> Iterator[Site]:
    """Web and sweeper that several tests share; each test has a workspace and a daemon of its own."""
    with Site(short_folder / "site") as running:
        yield running
        # Every history that any test of this worker made folds to what the tables say.
        running.command("verifyhistory")


@pytest.fixture
def new_site(short_folder: Path) -> Iterator[Callable[..., Site]]:
    """Makes a site that belongs to one test."""
    with ExitStack() as stack:

        def make(**options: Any) -> Site:
            folder = Path(tempfile.mkdtemp(prefix="s", dir=short_folder))
            return stack.enter_context(Site(folder / "site", **options))

        yield make


@pytest.fixture
def new_desk(short_folder: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[Site], Desk]]:
    """Makes a desk at a site; its daemons and agents are gone after the test."""
    with ExitStack() as stack:

        def make(where: Site) -> Desk:
            folder = Path(tempfile.mkdtemp(prefix="d", dir=short_folder))
            desk = Desk(where, folder)
            stack.callback(desk.close)
            request.node.desks = [*getattr(request.node, "desks", []), desk]
            return desk

        yield make


@pytest.fixture
def desk(site: Site, new_desk: Callable[[Site], Desk]) -> Desk:
    return new_desk(site)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """The logs of every process belong to the report of a failed test."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for each in getattr(item, "desks", []):
            logs = [each.site.logs(), *(f"--- {daemon.name}\n{daemon.text()[-6000:]}" for daemon in each.daemons)]
            report.sections.append(("processes", "\n".join(logs)))
