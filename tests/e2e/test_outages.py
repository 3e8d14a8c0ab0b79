"""The server's own parts fail: a replica, the cache, the database."""

from __future__ import annotations

from collections.abc import Callable

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
    desk.daemon(MULTICA_DAEMON_POLL_INTERVAL="600s")
    agent = desk.agent()
    until(lambda: desk.answers(), what="the daemon has asked once and sleeps")
    task = desk.task(agent, replica=1)
    launch = desk.hub.wait(task, 15)  # polls are 30 s apart: only the hint can be this fast
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


@pytest.mark.embedded
def test_work_goes_on_without_redis_and_a_result_outlives_the_database(new_site: Make, new_desk: Sit) -> None:
    """E-09, E-10, E-12, RP-02; LOST-01 and LIVE-03 in small: Valkey stops under a running task and comes back, then
    PostgreSQL is away at the moment when an agent ends. Nothing fails for it and nothing runs again."""
    site = new_site(own_services=True)
    desk = new_desk(site)
    desk.daemon()
    agent = desk.agent(CLAUDE)
    cache_stops_and_returns(site, desk, agent)
    database_is_away_at_the_end(site, desk, agent)
    site.command("verifyhistory")


def cache_stops_and_returns(site: Site, desk: Desk, agent: str) -> None:
    assert site.services is not None
    assert site.services.valkey is not None
    task, launch = desk.running(agent)
    site.services.valkey.stop()
    launch.finish("without a cache")
    desk.wait_status(task, "completed")
    during, second = desk.running(agent)
    second.finish("also without")
    desk.wait_status(during, "completed")
    site.services.valkey.start()

    def hinted() -> bool:
        """A task filed now is announced on the socket again."""
        new = desk.task(agent)
        desk.hub.wait(new, 10).finish("hinted")
        desk.wait_status(new, "completed")
        return any(new in unit.text for unit in desk.proxy.seen("daemon:task_available", down=True))

    until(hinted, 30, "hints work again after the cache is back")


def database_is_away_at_the_end(site: Site, desk: Desk, agent: str) -> None:
    assert site.services is not None
    assert site.services.postgres is not None
    task, launch = desk.running(agent)
    site.services.postgres.stop()
    asked = errors_seen(desk)
    launch.finish("R-9")
    assert launch.gone.wait(10)
    until(lambda: errors_seen(desk) > asked, 15, "the daemon meets a server without its database")
    site.services.postgres.start()
    row = desk.wait_status(task, "completed", seconds=30)
    assert row["result"]["output"] == "R-9"
    assert desk.children(task) == []
    assert len(desk.hub.of(task)) == 1
    following, second = desk.running(agent)
    second.finish("and on")
    desk.wait_status(following, "completed")


def errors_seen(desk: Desk) -> int:
    """Answers of 500 and more that the daemon got."""
    return len([unit for unit in desk.proxy.units if unit.down and unit.text.startswith("HTTP/1.1 5")])
