"""Keeps the control socket open and turns what arrives on it into wake-ups. It never waits for what it wakes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from daemon_client import protocol
from daemon_client.engine.claimer import Claimer
from daemon_client.engine.context import Context
from daemon_client.engine.heartbeat import Heartbeats
from daemon_client.engine.signals import Wake
from daemon_client.errors import TransportError
from daemon_client.protocol import Json
from daemon_client.transport.http import client_headers
from daemon_client.transport.retry import Backoff
from daemon_client.transport.rpc import RpcClient
from daemon_client.transport.ws import ControlSocket

log = logging.getLogger(__name__)

STEADY_AFTER = 10.0
QUIET_LOG = 3600.0


class Listener:
    """One connection after another. Losing any frame, or all of them, costs latency and nothing else."""

    def __init__(
        self,
        ctx: Context,
        claimer: Claimer,
        rpc: RpcClient,
        heartbeats: Heartbeats,
        on_profiles_changed: Callable[[str], None],
    ) -> None:
        self._ctx, self._claimer, self._rpc, self._heartbeats = ctx, claimer, rpc, heartbeats
        self._on_profiles_changed = on_profiles_changed
        self._backoff = Backoff(1.0, 30.0)
        self._redial = False
        self._bound: list[str] = []
        self._warned = float("-inf")
        self.beat_wake = Wake()
        self.socket = ControlSocket(
            ctx.settings.server_url,
            client_headers(ctx.settings.token, version=ctx.settings.cli_version),
            ctx.clock,
            on_frame=self.on_frame,
            on_connect=self._connected,
            on_disconnect=self._disconnected,
        )
        rpc.bind(self.socket)
        ctx.index.on_change(self._runtimes_changed)

    async def run_once(self) -> float:
        """Serve one connection; returns the wait before the next dial."""
        self._redial = False
        self._bound = self._ctx.index.runtime_ids()
        began = self._ctx.clock.monotonic()
        try:
            await self.socket.serve(self._bound)
        except TransportError as error:
            self._warn(str(error))
        else:
            if self._ctx.clock.monotonic() - began >= STEADY_AFTER:
                self._backoff.reset()
        return 0.0 if self._redial else self._backoff.next()

    def _warn(self, text: str) -> None:
        # A proxy that eats the upgrade would otherwise fill the log, while polling works well.
        now = self._ctx.clock.monotonic()
        level = logging.WARNING if now - self._warned >= QUIET_LOG else logging.DEBUG
        if level == logging.WARNING:
            self._warned = now
        log.log(level, "%s; hints and calls go over HTTP until it opens", text)

    def _runtimes_changed(self) -> None:
        self._redial = True
        self.socket.disconnect()
        self._ctx.poll_wake.set()

    def _connected(self) -> None:
        if self._bound != self._ctx.index.runtime_ids():
            # They changed while it was dialled: the server knows this connection by the old ones.
            self._runtimes_changed()
            return
        self._warned = float("-inf")
        self._claimer.on_connect()
        self.beat_wake.set()
        self._ctx.reconcile.request()
        self._ctx.outbox.retry_now()
        self._ctx.poll_wake.set()
        self._on_profiles_changed("")

    def _disconnected(self) -> None:
        self._rpc.fail_pending()
        self._heartbeats.on_disconnect()

    async def beat_once(self) -> float:
        """A heartbeat frame for each runtime; one that finds no room in the queue is left out."""
        for runtime_id in self._ctx.index.runtime_ids():
            self.socket.send(protocol.FRAME_HEARTBEAT, partial(self._heartbeats.compose, runtime_id))
        return self._ctx.settings.heartbeat_interval

    def on_frame(self, kind: str, payload: Json) -> None:
        """Called by the reader for every frame; everything slow is only woken here. Unknown kinds are ignored."""
        match kind:
            case protocol.FRAME_TASK_AVAILABLE:
                self._ctx.poll_wake.set()
            case protocol.FRAME_HEARTBEAT_ACK:
                self._on_ack(payload)
            case protocol.FRAME_RPC_RESPONSE:
                self._rpc.on_response(payload)
            case protocol.FRAME_PROFILES_CHANGED:
                if isinstance(workspace_id := payload.get("workspace_id"), str) and workspace_id:
                    self._on_profiles_changed(workspace_id)
            case protocol.FRAME_WORKSPACES_CHANGED:
                self._ctx.sync_wake.set()
            case protocol.FRAME_PENDING_WORK:
                if isinstance(runtime_id := payload.get("runtime_id"), str):
                    self._heartbeats.on_pending_work(runtime_id)

    def _on_ack(self, payload: Json) -> None:
        if not isinstance(payload.get("runtime_id"), str):
            return
        capabilities = payload.get("server_capabilities")
        if isinstance(capabilities, list):
            self.socket.announce(item for item in capabilities if isinstance(item, str))
        self._heartbeats.on_ack(payload)
