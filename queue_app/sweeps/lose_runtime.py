"""Active tasks of machines that were silent for the whole reconnect grace fail and wait for them."""

from __future__ import annotations

from queue_app.conf import conf
from queue_app.services import lose_runtime
from queue_app.sweeps.base import Sweep

SWEEP = Sweep("lose_runtime", lose_runtime.due, lose_runtime.run, settling=lambda: float(conf.RUNTIME_FRESHNESS))
run_once = SWEEP.run_once
