"""The tick: what is due goes to workers, so that no long handler delays another job or another scope."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from datetime import datetime

from django.db import DatabaseError, InterfaceError, connection

from cron_app import selectors, transitions
from cron_app.domain import plans
from cron_app.domain.jobspec import JobSpec, Scope
from cron_app.models import CronExecution
from cron_app.services.execute import Run, execute

log = logging.getLogger(__name__)
WORKERS = 8

Done = list[CronExecution]


class DuplicateJobError(ValueError):
    """Two jobs of one name would share each other's plans."""


class Ticker:
    """Ticks of one process. Any number of processes may tick; the table gives each plan to one of them.

    A worker takes a plan only when it can begin it, so no lease runs out while its plan waits for a thread.
    """

    def __init__(
        self, jobs: Sequence[JobSpec], *, stop: threading.Event | None = None, runner: str | None = None
    ) -> None:
        names = [job.name for job in jobs]
        if len(set(names)) != len(names):
            raise DuplicateJobError(f"job names must differ: {', '.join(sorted(names))}")
        self.jobs = tuple(jobs)
        self.stop = stop or threading.Event()
        self.runner = runner or str(uuid.uuid4())
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="cron")
        self._busy: dict[tuple[str, Scope], Future[Done]] = {}

    def tick(self, now: datetime | None = None) -> int:
        """One tick; the number of scopes that were handed to workers. One job's trouble is its own.

        Raises DatabaseError when the database is away; the next tick tries again.
        """
        moment = now or selectors.database_now()
        for row in transitions.close_abandoned([job.name for job in self.jobs], now=now):
            log.warning("cron %s %s: abandoned by %s", row.job_name, row.plan_time, row.runner_id)
        self._busy = {key: future for key, future in self._busy.items() if not future.done()}
        return sum(self._tick_job(job, moment, now) for job in self.jobs)

    def _tick_job(self, job: JobSpec, moment: datetime, now: datetime | None) -> int:
        try:
            due = [
                (scope, found)
                for scope in job.scopes()
                if (job.name, scope) not in self._busy
                and (found := plans.due(job, scope, moment, selectors.last_of(job.name, scope)))
            ]
        except (DatabaseError, InterfaceError):
            raise
        except Exception:
            log.exception("cron %s could not be planned", job.name)
            return 0
        for scope, found in due:
            self._busy[job.name, scope] = self._pool.submit(self._work, job, scope, found, now)
        return len(due)

    def _work(self, job: JobSpec, scope: Scope, due: list[datetime], now: datetime | None) -> Done:
        """Run a scope's plans in order; the first that fails or is lost ends the row."""
        done: Done = []
        try:
            for plan in due:
                if self.stop.is_set():
                    break
                execution = transitions.claim(job, scope, plan, runner=self.runner, now=now)
                if execution is None:
                    continue
                ended = execute(Run(job, execution, self.stop))
                if ended is None:
                    break
                done.append(ended)
                if ended.status != CronExecution.Status.SUCCESS:
                    break
        except Exception:
            # The lease runs out and the plan is closed as abandoned by whoever ticks next.
            log.exception("cron %s %s: its run could not be stored", job.name, scope)
        finally:
            connection.close()
        return done

    def wait(self, timeout: float | None = None) -> Done:
        """What the work handed out so far has ended, after at most `timeout` seconds."""
        finished, _ = wait_for(self._busy.values(), timeout)
        return [execution for future in finished for execution in future.result()]

    def close(self) -> None:
        """Ask the handlers to stop and wait for them."""
        self.stop.set()
        self._pool.shutdown(wait=True)
