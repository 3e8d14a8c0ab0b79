"""Growing waits with jitter, for whatever is tried again against a source that pushes back."""

from __future__ import annotations

BASE = 2.0
CAP = 120.0


def delay(attempt: int, jitter: float, *, base: float = BASE, cap: float = CAP) -> float:
    """Seconds to wait after failed attempt `attempt` (from 1): `min(base * 2**(attempt - 1), cap)`, half of it random.

    `jitter` is a random number in [0, 1), given by the caller so that this stays a function of its input.
    """
    full = cap if attempt > 64 else min(base * 2.0 ** (attempt - 1), cap)
    return full * (0.5 + jitter * 0.5)
