"""Follows the user's workspaces: registers new ones, forgets vanished ones, recovers what the server has dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from daemon_client.engine.context import Context
from daemon_client.engine.index import Workspace
from daemon_client.engine.registration import NothingToRegister, Registrar, profile_signature
from daemon_client.engine.signals import Wake
from daemon_client.errors import DaemonError, HttpError, is_transient
from daemon_client.protocol import Json
from daemon_client.transport.retry import Backoff, spread

log = logging.getLogger(__name__)

INTERVAL, LEGACY_INTERVAL, BOOTSTRAP_INTERVAL = 1800.0, 300.0, 30.0
REREGISTER_SPACING, REREGISTER_PAUSE = 30.0, 60.0
PROFILE_SPACING = 1.0
RECOVERY_RETRY = 5.0


class WorkspaceSync:
    """The list of workspaces, and for each new one: register, clone its repositories aside, recover its orphans."""

    def __init__(self, ctx: Context, registrar: Registrar, spawn: Callable[[Coroutine[Any, Any, None]], Any]) -> None:
        self._ctx, self._registrar, self._spawn = ctx, registrar, spawn
        self._etag = ""
        self._listed: list[Json] = []
        self._legacy = False
        self._backoff = Backoff(BOOTSTRAP_INTERVAL, LEGACY_INTERVAL)
        self.recover_wake = Wake()

    async def run_once(self) -> float:
        """One synchronisation; returns the wait until the next. Only the list itself may raise."""
        await self.sync()
        if any(not workspace.runtimes for workspace in self._ctx.index.workspaces.values()):
            return self._backoff.next()
        self._backoff.reset()
        if not self._ctx.index.runtime_ids():
            return spread(BOOTSTRAP_INTERVAL)
        return spread(LEGACY_INTERVAL if self._legacy else INTERVAL)

    async def sync(self) -> list[Exception]:
        """Bring the index in line with the server; the errors of workspaces that could not be registered."""
        listed = {item["id"]: item for item in await self._list() if isinstance(item.get("id"), str)}
        index = self._ctx.index
        for gone in index.workspaces.keys() - listed.keys():
            log.info("workspace %s is no longer visible", gone)
            del index.workspaces[gone]
        errors: list[Exception] = []
        for workspace_id, item in listed.items():
            known = index.workspaces.setdefault(workspace_id, Workspace(workspace_id, str(item.get("name") or "")))
            if known.runtimes:
                continue
            try:
                await self.register(known)
            except DaemonError as error:
                log.warning("workspace %s cannot be registered: %s", known.name or workspace_id, error)
                errors.append(error)
        index.changed()
        return errors

    async def register(self, workspace: Workspace) -> None:
        """Register a workspace that this process holds no runtime of. Its orphans are recovered before it may claim,
        but never those of a runtime whose work is held here: recovery would kill it."""
        await self._registrar.register(workspace)
        workspace.unrecovered = {rid for rid in workspace.runtimes if not self._ctx.active.of_runtime(rid)}
        self._ctx.index.changed()
        self.recover_wake.set()
        self._spawn(self._clone(workspace))

    async def _list(self) -> list[Json]:
        if self._legacy:
            return await self._ctx.api.user_workspaces()
        try:
            listed, self._etag = await self._ctx.api.workspaces(self._etag)
        except HttpError as error:
            if error.status != 404:
                raise
            self._legacy = True
            return await self._ctx.api.user_workspaces()
        if listed is not None:
            self._listed = listed
        return self._listed

    async def _clone(self, workspace: Workspace) -> None:
        for repo in list(workspace.repos):
            if not isinstance(url := repo.get("url"), str) or not url:
                continue
            try:
                await self._ctx.workbench.ensure_repo(workspace.id, url)
            except Exception as error:
                log.warning("repository of workspace %s is not cached yet: %s", workspace.name, error)

    # -- first sync --

    async def preflight(self) -> None:
        """The synchronisation that start-up depends on: a refusal ends the daemon, the caller retries an outage.

        No workspace at all is fine. Workspaces of which none can be registered are not."""
        errors = await self.sync()
        if not errors or self._ctx.index.runtime_ids():
            return
        transient = [error for error in errors if is_transient(error)]
        raise (transient or errors)[0]

    # -- orphans --

    async def recover_once(self) -> float:
        """Ask for the recovery of orphans where it is due. A runtime's own endings go first: recovery would overwrite
        a result that waits in the outbox with a failure."""
        left = False
        for runtime in self._ctx.index.unrecovered():
            if self._ctx.outbox.blocks_recovery(runtime.id):
                left = True
                continue
            try:
                await self._ctx.api.recover_orphans(runtime.id)
            except DaemonError as error:
                log.warning("orphans of runtime %s: %s", runtime.id, error)
                if is_transient(error):
                    left = True
                    continue
            self._ctx.index.recovered(runtime)
            self._ctx.poll_wake.set()
        return spread(RECOVERY_RETRY) if left else 3600.0


class RuntimeRecovery:
    """Registers a workspace again after the server has said that one of its runtimes is gone."""

    def __init__(self, ctx: Context, sync: WorkspaceSync) -> None:
        self._ctx, self._sync = ctx, sync
        self._due: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self.wake = Wake()

    def gone(self, runtime_id: str) -> None:
        """A heartbeat was told that the runtime does not exist. Repeated signals for it are one recovery."""
        runtime = self._ctx.index.drop_runtime(runtime_id)
        if runtime is None:
            return
        log.warning("the server no longer knows runtime %s; registering again", runtime_id)
        earliest = self._last.get(runtime.workspace_id, float("-inf")) + REREGISTER_SPACING
        self._due.setdefault(runtime.workspace_id, max(self._ctx.clock.monotonic(), earliest))
        self.wake.set()

    async def run_once(self) -> float:
        now = self._ctx.clock.monotonic()
        for workspace_id in [each for each, when in self._due.items() if when <= now]:
            workspace = self._ctx.index.workspaces.get(workspace_id)
            self._last[workspace_id] = now
            del self._due[workspace_id]
            if workspace is None:
                continue
            try:
                await self._sync.register(workspace)
            except DaemonError as error:
                log.warning("workspace %s cannot be registered again: %s", workspace.name, error)
                self._due[workspace_id] = now + REREGISTER_PAUSE
        return max(0.0, min(self._due.values()) - now) if self._due else 3600.0


class ProfileRefresh:
    """Registers again when the runtime profiles changed, and only then. Never recovers orphans: runtimes that stay may
    be working."""

    def __init__(self, ctx: Context, registrar: Registrar) -> None:
        self._ctx, self._registrar = ctx, registrar
        self._pending: set[str] = set()
        self.wake = Wake()

    def request(self, workspace_id: str = "") -> None:
        """Look at one workspace's profiles soon, or at all of them."""
        self._pending |= {workspace_id} if workspace_id else set(self._ctx.index.workspaces)
        self.wake.set()

    async def run_once(self) -> float:
        pending, self._pending = self._pending, set()
        for workspace_id in sorted(pending):
            workspace = self._ctx.index.workspaces.get(workspace_id)
            if workspace:
                await self._refresh(workspace)
        if pending:
            await self._ctx.clock.sleep(PROFILE_SPACING)
        return 3600.0 if not self._pending else 0.0

    async def _refresh(self, workspace: Workspace) -> None:
        profiles = await self._registrar.profiles(workspace.id)
        if profiles is None or profile_signature(profiles) == workspace.profile_signature:
            return
        before = set(workspace.runtimes)
        try:
            await self._registrar.register(workspace, profiles)
        except NothingToRegister:
            await self._ctx.api.deregister(sorted(before))
            workspace.runtimes, workspace.profile_signature = {}, profile_signature(profiles)
        except DaemonError as error:
            log.warning("workspace %s cannot be registered with its new profiles: %s", workspace.name, error)
            return
        workspace.unrecovered &= set(workspace.runtimes)
        self._ctx.index.changed()
