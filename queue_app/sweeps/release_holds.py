"""Stops that nobody confirmed on a machine that was healthy throughout the limit no longer hold anything back."""

from __future__ import annotations

from queue_app.services import release_holds
from queue_app.sweeps.base import Sweep

SWEEP = Sweep("release_holds", release_holds.due, release_holds.run)
run_once = SWEEP.run_once
