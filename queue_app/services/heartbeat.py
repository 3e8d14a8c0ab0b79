"""A daemon says that one of its runtimes lives, and which deliveries it holds."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from queue_app import auth, events
from queue_app.auth import Caller
from queue_app.conf import conf
from queue_app.domain.states import ACTIVE
from queue_app.errors import NotFoundError, RuntimeNotFoundError
from queue_app.models import AgentRuntime, AgentTask
from queue_app.services import liveness, recover_orphans
from queue_app.services.access import OUT_OF_REACH, runtime_of
from queue_app.wire.daemon import Heartbeat, HeldTask, ident_of, token_of

AGREED_FOR = 600.0
AGREED_MOST = 50_000
"""Seconds that an agreement about what is held counts while neither side changes; agreements kept."""

Held = tuple[UUID, UUID | None]


def heartbeat(caller: Caller, beat: Heartbeat) -> dict[str, Any]:
    """Note that the runtime was heard and answer what it should know; the runtime is online when this returns.

    A runtime at rest costs one round trip to Redis and no statement. Raises RuntimeNotFoundError when the row does not
    exist, NotFoundError when it is out of reach.
    """
    runtime_id = ident_of(beat.runtime_id)
    known = liveness.look(runtime_id) if runtime_id is not None else None
    if runtime_id is None or known is None or known.workspace_id not in auth.workspace_ids(caller):
        runtime_id = _by_row(caller, runtime_id, beat)
        version = None
    else:
        _by_sign(runtime_id, known, beat)
        version = known.version
    liveness.flush_if_due()
    if beat.active_tasks is not None:
        _compare(runtime_id, beat.active_tasks, beat, version)
    return {"status": "ok", "runtime_id": str(runtime_id)}


def _by_row(caller: Caller, runtime_id: UUID | None, beat: Heartbeat) -> UUID:
    runtime = runtime_of(caller, runtime_id)
    age = None if runtime.last_seen_at is None else (timezone.now() - runtime.last_seen_at).total_seconds()
    if runtime.status != AgentRuntime.Status.ONLINE or age is None or age >= conf.HEARTBEAT_FLUSH:
        _bring_online(runtime, beat)
    else:
        liveness.keep([(runtime.pk, runtime.workspace_id)], age=max(0.0, age))
    return runtime.pk


def _by_sign(runtime_id: UUID, known: liveness.Known, beat: Heartbeat) -> None:
    if known.age < conf.HEARTBEAT_FLUSH:
        return
    if known.age < conf.HEARTBEAT_FLUSH + conf.HEARTBEAT_BATCH:
        liveness.write_later(runtime_id, known.workspace_id, _slots(beat))
        return
    # Batches were lost (a restart): the row is nearer to stale than another batch allows.
    runtime = AgentRuntime.objects.filter(pk=runtime_id).first()
    if runtime is None or runtime.workspace_id != known.workspace_id:
        liveness.forget([runtime_id])
        raise RuntimeNotFoundError if runtime is None else NotFoundError(OUT_OF_REACH)
    _bring_online(runtime, beat)


def _bring_online(runtime: AgentRuntime, beat: Heartbeat) -> None:
    was_online = runtime.status == AgentRuntime.Status.ONLINE
    liveness.write_now(runtime, _slots(beat))
    if not was_online:
        payload = {"runtime_id": str(runtime.pk), "status": AgentRuntime.Status.ONLINE.value}
        events.publish(runtime.workspace_id, "runtime:status", payload)
        # What waited for the runtime can be taken now, instead of at the next poll.
        events.wake([runtime.pk])


def _slots(beat: Heartbeat) -> dict[str, Any] | None:
    if beat.slots is None:
        return None
    return {name: beat.slots[name] for name in ("total", "free") if isinstance(beat.slots.get(name), int)}


# --------------------------------------------------------------------------------------- what the daemon says it holds


class _Agreements:
    """Runtimes whose daemon named all that the table has, so nothing needs a look until one of the two changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[UUID, tuple[str, frozenset[Held], float]] = OrderedDict()

    def holds(self, runtime_id: UUID, version: str, named: frozenset[Held]) -> bool:
        with self._lock:
            kept = self._kept.get(runtime_id)
        return kept is not None and kept[:2] == (version, named) and time.monotonic() - kept[2] < AGREED_FOR

    def keep(self, runtime_id: UUID, version: str, named: frozenset[Held]) -> None:
        with self._lock:
            self._kept[runtime_id] = (version, named, time.monotonic())
            self._kept.move_to_end(runtime_id)
            while len(self._kept) > AGREED_MOST:
                self._kept.popitem(last=False)


_agreements = _Agreements()


def _compare(runtime_id: UUID, active: list[HeldTask], beat: Heartbeat, version: str | None) -> None:
    """Hand a beat that names less than the table has to recovery: it lifts holds and notes or proves omissions."""
    named = _named(active)
    if version is not None and _agreements.holds(runtime_id, version, named):
        return
    rows = AgentTask.objects.filter(runtime_id=runtime_id).filter(
        Q(status__in=sorted(ACTIVE)) | Q(stop_pending_since__isnull=False)
    )
    here = list(rows.values_list("pk", "claim_token", "status", "omission"))
    held = {pk for pk, token, _, _ in here if (pk, token) in named or (pk, None) in named}
    if all(pk in held and status in ACTIVE and noted is None for pk, _, status, noted in here):
        if version is not None:
            _agreements.keep(runtime_id, version, named)
        return
    incarnation = ident_of(beat.incarnation)
    if incarnation is not None and _is_next(runtime_id, incarnation, beat.seq):
        runtime = AgentRuntime.objects.get(pk=runtime_id)
        recover_orphans.recover_omitted(runtime, held, incarnation, beat.seq)


def _named(active: Sequence[HeldTask]) -> frozenset[Held]:
    pairs = ((ident_of(task.task_id), token_of(task.claim_token)) for task in active)
    return frozenset((task_id, token) for task_id, token in pairs if task_id is not None)


def _is_next(runtime_id: UUID, incarnation: UUID, seq: int) -> bool:
    """Whether the beat is newer than all that were compared before; one that was overtaken proves nothing.

    Incarnations of our daemon are UUIDv7, so the older process is known; others only differ.
    """
    newer = Q(incarnation__lt=incarnation) if incarnation.version == 7 else ~Q(incarnation=incarnation)
    rows = AgentRuntime.objects.filter(pk=runtime_id)
    rows = rows.filter(Q(incarnation__isnull=True) | newer | Q(incarnation=incarnation, heartbeat_seq__lt=seq))
    return bool(rows.update(incarnation=incarnation, heartbeat_seq=seq))
