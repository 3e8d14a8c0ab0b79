"""Where effects and other packages register to be called, so that services never import them.

`on_end(kind)` functions run inside the transaction of the end, with the moved row; they must only write rows.
`on_commit` listeners see the event after commit; they may do slow or lossy things and must not raise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue_app.models import AgentTask

log = logging.getLogger(__name__)

EndEffect = Callable[["AgentTask", dict[str, Any]], None]
Listener = Callable[[str, dict[str, Any]], None]

_ends: dict[str, list[EndEffect]] = {}
_listeners: list[Listener] = []


def on_end(kind: str) -> Callable[[EndEffect], EndEffect]:
    """Register an effect of an end for tasks of `kind` (`"*"`: of every kind)."""

    def register(effect: EndEffect) -> EndEffect:
        effects = _ends.setdefault(kind, [])
        if effect not in effects:
            effects.append(effect)
        return effect

    return register


def run_end_effects(task: AgentTask, facts: dict[str, Any]) -> None:
    """Run the effects of an ended task inside the caller's transaction. `facts` holds `retry` (the child or None)."""
    for effect in (*_ends.get("*", ()), *_ends.get(task.kind, ())):
        effect(task, facts)


def listen(listener: Listener) -> Listener:
    """Register a listener to every announced event: (event name, payload)."""
    if listener not in _listeners:
        _listeners.append(listener)
    return listener


def tell_listeners(event: str, payload: dict[str, Any]) -> None:
    """Call the listeners after commit; one that raises is logged and does not stop the others."""
    for listener in _listeners:
        try:
            listener(event, payload)
        except Exception:
            log.exception("listener of %s failed", event)
