"""The loop around the sweeps and its command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from queue_app.conf import conf
from queue_app.models import AgentRuntime, AgentTask
from queue_app.sweeps import runner
from queue_app.sweeps.base import Sweep, Swept
from tests.support import lifecycle
from tests.support.lifecycle import Site
from tests.support.wait import until


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def sweep(name: str, act: Any = lambda now: 1, settling: float = 0.0) -> Sweep:
    return Sweep(name, lambda now: [], act, settling=lambda: settling)


def names(results: list[Swept | Exception]) -> list[str]:
    return [result.name if isinstance(result, Swept) else type(result).__name__ for result in results]


@pytest.mark.django_db
def test_a_failing_sweep_does_not_stop_the_others() -> None:
    """STUCK-05: the rescuers do not depend on each other."""

    def broken(now: Any) -> int:
        raise RuntimeError("boom")

    results = runner.run_once([sweep("a"), sweep("b", broken), sweep("c")])
    assert names(results) == ["a", "RuntimeError", "c"]


@pytest.mark.django_db
def test_a_judge_of_silence_waits_until_it_has_listened_for_its_window() -> None:
    """LIVE-03: after a start, after a lost database and after a pause of our own, silence proves nothing yet."""
    clock = Clock()
    trouble: list[Exception] = []

    def act(now: Any) -> int:
        if trouble:
            raise trouble.pop()
        return 1

    loop = runner.Loop([sweep("judge", settling=150), sweep("other", act)], clock=clock)

    def listens_anew() -> None:
        for _ in range(5):
            assert names(loop.one_pass())[0] != "judge"
            clock.time += conf.SWEEP_INTERVAL
        assert names(loop.one_pass()) == ["judge", "other"]

    listens_anew()
    clock.time += conf.SWEEP_INTERVAL
    trouble.append(OperationalError("server closed the connection"))
    assert names(loop.one_pass()) == ["judge", "OperationalError"]
    listens_anew()
    clock.time += 200
    listens_anew()


def test_which_sweeps_wait() -> None:
    """LIVE-03: those that judge machines and leases; the others never do."""
    waits = {sweep.name: sweep.settling() for sweep in runner.SWEEPS if sweep.settling()}
    fresh = conf.RUNTIME_FRESHNESS
    assert waits == {
        "mark_offline": fresh,
        "lose_runtime": fresh,
        "expire_deferred": fresh,
        "time_out": conf.PREPARE_LEASE,
    }


@pytest.mark.django_db(transaction=True)
def test_the_loop_outlives_its_connection_and_stops_when_told(settings: Any) -> None:
    """D12: a session that the server ended is opened anew; the event ends the loop after the pass at hand."""
    settings.MULTICA = {**settings.MULTICA, "SWEEP_INTERVAL": 0.02}
    site = Site()
    task = site.queued(status="deferred", fire_at=site.runtime.last_seen_at)
    loop = runner.Loop(runner.chosen(["promote"]))
    companion = threading.Event()

    def beside(stop: threading.Event) -> None:
        stop.wait()
        companion.set()

    runner._companions.append(beside)
    thread = threading.Thread(target=lambda: (loop.run(), _close()))
    try:
        thread.start()
        until(lambda: AgentTask.objects.get(id=task.id).status == "queued", what="promotion")
        _end_other_sessions()
        passes = loop.passes
        until(lambda: loop.passes > passes + 2, what="passes after the sessions were ended")
        later = site.queued(issue=site.more_issue(), status="deferred", fire_at=site.runtime.last_seen_at)
        until(lambda: AgentTask.objects.get(id=later.id).status == "queued", what="promotion after the loss")
    finally:
        loop.stop.set()
        thread.join(10)
        runner._companions.remove(beside)
    assert not thread.is_alive()
    assert companion.is_set()


def _close() -> None:
    from django.db import connection

    connection.close()


def _end_other_sessions() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )


# ------------------------------------------------------------------------------------------------------ the command


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("runsweeper", *arguments, stdout=out, stderr=out)
    return out.getvalue()


@pytest.mark.django_db
def test_a_dry_run_prints_row_rule_threshold_and_margin_and_touches_nothing() -> None:
    """D12: what would happen, in words, and the table as it was."""
    site = Site()
    task = site.running()
    site.silent(11000)
    before = lifecycle.row_of(task)
    told = run("--dry-run", "--only", "lose_runtime")
    for words in (str(task.id), "held by a machine that is gone", "threshold 10800 s", "over by "):
        assert words in told
    assert lifecycle.row_of(task) == before
    assert AgentRuntime.objects.get(id=site.runtime.id).status == "offline"


@pytest.mark.django_db
def test_once_runs_all_or_those_named() -> None:
    """D12: each by its name, in order, with its count."""
    assert run("--once").splitlines() == [f"{sweep.name}: 0" for sweep in runner.SWEEPS]
    assert run("--once", "--only", "age", "--only", "promote").splitlines() == ["promote: 0", "age: 0"]
    with pytest.raises(CommandError, match="there are mark_offline"):
        run("--once", "--only", "nonsense")


@pytest.mark.django_db
def test_once_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that failed is named and the status is not 0."""

    def broken(now: Any) -> int:
        raise RuntimeError("boom")

    monkeypatch.setattr(runner, "SWEEPS", (sweep("a"), sweep("b", broken)))
    with pytest.raises(CommandError, match="failed: b"):
        run("--once")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_cleanly(number: int) -> None:
    """D12: status 0 after the pass at hand, cron's workers included."""
    from django.db import connection

    settings = connection.settings_dict
    host, port, name = settings["HOST"], settings["PORT"], settings["NAME"]
    url = f"postgresql:///{name}?host={host}&user={settings['USER']}&password={settings['PASSWORD']}" + (
        f"&port={port}" if port else ""
    )
    process = subprocess.Popen(
        [sys.executable, "manage.py", "runsweeper"],
        env={**os.environ, "DATABASE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "sweeper: running"
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 0, out
    assert "sweeper: stopped" in out
