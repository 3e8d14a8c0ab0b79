"""Deferred tasks that are due on healthy machines become claimable; superseded retries are cancelled first."""

from __future__ import annotations

from queue_app.services import promote
from queue_app.sweeps.base import Sweep

SWEEP = Sweep("promote", promote.due, promote.run_all)
run_once = SWEEP.run_once
