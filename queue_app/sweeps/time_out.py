"""Preparations that died, deliveries nobody starts and runs of lost machines fail as timed out."""

from __future__ import annotations

from queue_app.conf import conf
from queue_app.services import time_out
from queue_app.sweeps.base import Sweep

SWEEP = Sweep("time_out", time_out.due, time_out.run, settling=lambda: float(conf.PREPARE_LEASE))
run_once = SWEEP.run_once
