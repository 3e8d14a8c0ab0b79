"""Runs the sweeps in order, alone or for ever. No leader: every statement is safe beside any other sweeper.

A sweep that fails is logged and the others run. A lost database is waited for. After a start or a gap in which nothing
could be heard, the sweeps that judge silence wait for their window first: our own outage must not read as theirs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from django.db import DatabaseError, InterfaceError, close_old_connections, connection

from queue_app.conf import conf
from queue_app.sweeps import (
    age,
    expire_deferred,
    expire_queued,
    lose_runtime,
    mark_offline,
    promote,
    release_holds,
    time_out,
)
from queue_app.sweeps.base import Sweep, Swept

log = logging.getLogger(__name__)

SWEEPS: tuple[Sweep, ...] = (
    mark_offline.SWEEP,
    lose_runtime.SWEEP,
    time_out.SWEEP,
    expire_deferred.SWEEP,
    expire_queued.SWEEP,
    release_holds.SWEEP,
    promote.SWEEP,
    age.SWEEP,
)

Companion = Callable[[threading.Event], None]
_companions: list[Companion] = []


def beside(companion: Companion) -> Companion:
    """Register a loop that runs on a thread of its own beside the sweeps until the event is set."""
    if companion not in _companions:
        _companions.append(companion)
    return companion


def chosen(names: Sequence[str] | None) -> tuple[Sweep, ...]:
    """The sweeps of these names in their order, all for None. Raises KeyError with a name that there is none of."""
    if not names:
        return SWEEPS
    known = {sweep.name: sweep for sweep in SWEEPS}
    wanted = {known[name].name for name in names}
    return tuple(sweep for sweep in SWEEPS if sweep.name in wanted)


def run_once(
    sweeps: Sequence[Sweep] = SWEEPS, *, now: datetime | None = None, dry_run: bool = False
) -> list[Swept | Exception]:
    """One pass over these sweeps; in place of a sweep that failed its exception stands."""
    return [_guarded(sweep, now, dry_run) for sweep in sweeps]


def _guarded(sweep: Sweep, now: datetime | None, dry_run: bool) -> Swept | Exception:
    try:
        return sweep.run_once(now, dry_run)
    except (DatabaseError, InterfaceError) as error:
        log.warning("sweep %s: %s", sweep.name, str(error).strip())
        _drop_broken()
        return error
    except Exception as error:
        log.exception("sweep %s failed", sweep.name)
        return error


def _drop_broken() -> None:
    # The next statement opens a new connection if this one died with its server.
    if not connection.in_atomic_block and not connection.is_usable():
        connection.close()


class Loop:
    """The sweeps every `SWEEP_INTERVAL` seconds until `stop` is set, with the registered companions beside them."""

    def __init__(
        self,
        sweeps: Sequence[Sweep] = SWEEPS,
        *,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sweeps = tuple(sweeps)
        self.stop = stop or threading.Event()
        self.passes = 0
        self._clock = clock
        self._steady_since = clock()
        self._last_look: float | None = None

    def run(self) -> None:
        """Block until stopped; returns after the pass at hand and the companions have ended."""
        threads = [
            threading.Thread(target=companion, args=(self.stop,), name=f"beside-{companion.__name__}")
            for companion in _companions
        ]
        for thread in threads:
            thread.start()
        try:
            while not self.stop.is_set():
                self.one_pass()
                self.stop.wait(conf.SWEEP_INTERVAL)
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()

    def one_pass(self) -> list[Swept | Exception]:
        """One pass over those sweeps that may judge by now."""
        close_old_connections()
        self._note_gap()
        settled = self._clock() - self._steady_since
        results = run_once([sweep for sweep in self.sweeps if settled >= sweep.settling()])
        if any(isinstance(result, DatabaseError | InterfaceError) for result in results):
            self._steady_since = self._clock()
        self._last_look = self._clock()
        self.passes += 1
        for result in results:
            if isinstance(result, Swept) and result.acted:
                log.info("sweep %s: %d", result.name, result.acted)
        return results

    def _note_gap(self) -> None:
        # A pass that was held up (a paused database, a suspended host) means that heartbeats were held up as well.
        now = self._clock()
        if self._last_look is not None and now - self._last_look > 3 * float(conf.SWEEP_INTERVAL):
            self._steady_since = now
