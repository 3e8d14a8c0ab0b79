"""Runtimes not heard within the freshness window become offline; a sign of life in Redis vetoes."""

from __future__ import annotations

from queue_app.conf import conf
from queue_app.services import mark_offline
from queue_app.sweeps.base import Sweep

SWEEP = Sweep("mark_offline", mark_offline.due, mark_offline.run, settling=lambda: float(conf.RUNTIME_FRESHNESS))
run_once = SWEEP.run_once
