"""The server's own parts fail: a replica, the cache, the database."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.desk import CLAUDE, Desk
from tests.support.stack import Site
from tests.support.waits import until

Make = Callable[..., Site]
Sit = Callable[[Site], Desk]


def test_two_replicas_wake_each_others_daemons_and_outlive_each_other(new_site: Make, new_desk: Sit) -> None:
    """W-18, W-16, Q-22, LOST-03: filed on B, hinted through A; A is killed while the agent runs, B takes the result."""
    site = new_site(replicas=2)
    desk = new_desk(site)
    desk.daemon(MULTICA_DAEMON_POLL_INTERVAL="200s")
    agent = desk.agent()
    before = desk.claims()
    until(lambda: desk.claims() >= max(before, 1), what="the daemon has asked once")
    task = desk.task(agent, replica=1)
    launch = desk.hub.wait(task, 8)  # polls are 10 s apart: only the hint can be this fast
    assert [unit for unit in desk.proxy.seen("daemon:task_available", down=True) if task in unit.text]
    desk.wait_status(task, "running")

    site.servers[0].kill()
    desk.proxy.retarget(site.servers[1].port)
    desk.api = desk.api_of(1)
    launch.say("still here")
    until(lambda: "still here" in desk.said(task), 15)
    launch.finish("through the other")
    row = desk.wait_status(task, "completed")
    assert "through the other" in row["result"]["output"]
    following = desk.task(agent, replica=1)
    desk.hub.wait(following).finish("and on")
    desk.wait_status(following, "completed")
    assert len(desk.hub.launches) == 2


@pytest.fixture(scope="module")
def fragile() -> Iterator[Site]:
    """A site whose PostgreSQL and Valkey a test may stop."""
    folder = Path(tempfile.mkdtemp(prefix="e2e-"))
    with Site(folder / "site", own_services=True) as running:
        yield running
        running.command("verifyhistory")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.embedded
def test_work_goes_on_without_redis_and_after_its_return(fragile: Site, new_desk: Sit) -> None:
    """E-09, E-10, E-12, W-17: Valkey stops under a running task and starts again; hints come back with it."""
    assert fragile.services is not None
    assert fragile.services.valkey is not None
    desk = new_desk(fragile)
    desk.daemon()
    agent = desk.agent()
    task, launch = desk.running(agent)
    fragile.services.valkey.stop()
    launch.finish("without a cache")
    desk.wait_status(task, "completed")
    during, second = desk.running(agent)
    second.finish("also without")
    desk.wait_status(during, "completed")

    fragile.services.valkey.start()

    def hinted() -> bool:
        """A task filed now is announced on the socket again."""
        new = desk.task(agent)
        desk.hub.wait(new, 10).finish("hinted")
        desk.wait_status(new, "completed")
        return any(new in unit.text for unit in desk.proxy.seen("daemon:task_available", down=True))

    until(hinted, 30, "hints work again after the cache is back")


@pytest.mark.embedded
def test_true_result_is_stored_after_a_restart_of_the_database(fragile: Site, new_desk: Sit) -> None:
    """LOST-01, RP-02, LIVE-03 in small: PostgreSQL is away when the agent ends; nothing fails for it or runs again."""
    assert fragile.services is not None
    assert fragile.services.postgres is not None
    desk = new_desk(fragile)
    desk.daemon()
    agent = desk.agent(CLAUDE)
    task, launch = desk.running(agent)
    fragile.services.postgres.stop()
    launch.finish("R-9")
    assert launch.gone.wait(10)
    refused = len([unit for unit in desk.proxy.units if unit.down and " 50" in unit.text[:16]])
    until(
        lambda: len([unit for unit in desk.proxy.units if unit.down and " 50" in unit.text[:16]]) > refused,
        15,
        "the daemon meets a server without its database",
    )
    fragile.services.postgres.start()
    row = desk.wait_status(task, "completed", seconds=30)
    assert row["result"]["output"] == "R-9"
    assert desk.children(task) == []
    assert len(desk.hub.of(task)) == 1
    following, second = desk.running(agent)
    second.finish("and on")
    desk.wait_status(following, "completed")
