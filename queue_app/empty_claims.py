"""The empty verdict: cached, versioned knowledge that a runtime has no queued row at all."""

from __future__ import annotations

from collections.abc import Iterable


def bump(runtime_ids: Iterable[str]) -> None:
    """Make every verdict about these runtimes stale. Before any wake-up, after the commit."""
