"""Watches the server's word on a task while it runs here, and stops the run when the task is over there."""

from __future__ import annotations

import logging

from daemon_client import protocol
from daemon_client.engine.active import ActiveRun
from daemon_client.engine.context import Context
from daemon_client.errors import HttpError

log = logging.getLogger(__name__)


async def look(ctx: Context, run: ActiveRun) -> None:
    """Ask once for the task's status and stop the run if it must stop.

    It must when the task has ended, when it is gone (the server's own words, not just any 404), or when this delivery
    was superseded. Any other trouble proves nothing about the task, and the run goes on.
    """
    try:
        status = await ctx.api.status(run.task)
    except HttpError as error:
        if error.claim_is_over:
            run.control.request("superseded", str(error))
        elif error.task_not_found:
            run.control.request("cancelled", "the task is gone")
        else:
            log.debug("status of task %s: %s", run.task.id, error)
    except Exception as error:
        log.debug("status of task %s: %s", run.task.id, error)
    else:
        if status in protocol.TERMINAL_STATUSES:
            run.control.request("cancelled", f"the task is {status}")


async def watch(ctx: Context, run: ActiveRun) -> None:
    """Look every 5 s, and at once after a (re)connect, until the run must stop."""
    with ctx.reconcile.subscribe() as wake:
        while not run.control.stop.is_set():
            await wake.wait(ctx.settings.status_poll_interval, ctx.clock)
            await look(ctx, run)
