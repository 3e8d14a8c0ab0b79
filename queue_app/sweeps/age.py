"""Heads that waited long enough rise by one priority."""

from __future__ import annotations

from queue_app.services import age
from queue_app.sweeps.base import Sweep

SWEEP = Sweep("age", age.due, age.run)
run_once = SWEEP.run_once
