"""Ticks for ever beside the sweeps, on a thread of its own."""

from __future__ import annotations

import logging
import threading

from django.db import DatabaseError, InterfaceError, connection

from cron_app.jobs import JOBS
from cron_app.services.tick import Ticker
from queue_app.conf import conf

log = logging.getLogger(__name__)


def cron(stop: threading.Event) -> None:
    """Tick every `SWEEP_INTERVAL` seconds until `stop` is set, then wait for the handlers. Outlives lost databases."""
    ticker = Ticker(JOBS, stop=stop)
    try:
        while not stop.is_set():
            try:
                ticker.tick()
            except (DatabaseError, InterfaceError) as error:
                log.warning("cron tick: %s", str(error).strip())
                connection.close()
            except Exception:
                log.exception("cron tick failed")
            stop.wait(conf.SWEEP_INTERVAL)
    finally:
        ticker.close()
        connection.close()
