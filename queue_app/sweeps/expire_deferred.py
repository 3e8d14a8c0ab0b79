"""Retries whose machine did not come back within the grace fail."""

from __future__ import annotations

from queue_app.conf import conf
from queue_app.services import expire
from queue_app.sweeps.base import Sweep

SWEEP = Sweep(
    "expire_deferred", expire.deferred_due, expire.run_deferred, settling=lambda: float(conf.RUNTIME_FRESHNESS)
)
run_once = SWEEP.run_once
