"""One plan, now, in the caller's thread."""

from __future__ import annotations

import threading
from datetime import datetime

from cron_app import selectors, transitions
from cron_app.domain import plans
from cron_app.domain.jobspec import JobSpec, Scope
from cron_app.models import CronExecution
from cron_app.services.execute import Run, execute


def run(job: JobSpec, scope: Scope, plan: datetime | None, stop: threading.Event) -> CronExecution | None:
    """Claim and run a plan, by default the newest that is due; None when there is none or somebody else has it."""
    if plan is None:
        due = plans.due(job, scope, selectors.database_now(), selectors.last_of(job.name, scope))
        if not due:
            return None
        plan = due[-1]
    execution = transitions.claim(job, scope, plan, runner="by hand")
    return execute(Run(job, execution, stop)) if execution is not None else None
