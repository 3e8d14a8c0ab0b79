"""Queued tasks past the time to live fail; retries are exempt."""

from __future__ import annotations

from queue_app.services import expire
from queue_app.sweeps.base import Sweep

SWEEP = Sweep("expire_queued", expire.queued_due, expire.run_queued)
run_once = SWEEP.run_once
