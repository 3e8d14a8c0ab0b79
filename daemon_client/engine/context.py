"""What the loops of one daemon share."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemon_client.clock import Clock
from daemon_client.config import DaemonSettings
from daemon_client.engine.active import ActiveTasks
from daemon_client.engine.index import RuntimeIndex
from daemon_client.engine.outbox import Outbox
from daemon_client.engine.signals import ReconcileBroadcaster, Wake
from daemon_client.engine.slots import ClaimBarrier, SlotPool
from daemon_client.engine.workbench import Workbench
from daemon_client.transport.http import ServerApi


@dataclass
class Context:
    """One daemon's parts. `port` is the local HTTP port once it is bound."""

    settings: DaemonSettings
    clock: Clock
    api: ServerApi
    workbench: Workbench
    outbox: Outbox
    reconcile: ReconcileBroadcaster
    slots: SlotPool
    index: RuntimeIndex = field(default_factory=RuntimeIndex)
    active: ActiveTasks = field(default_factory=ActiveTasks)
    barrier: ClaimBarrier = field(default_factory=ClaimBarrier)
    poll_wake: Wake = field(default_factory=Wake)
    sync_wake: Wake = field(default_factory=Wake)
    port: int = 0
