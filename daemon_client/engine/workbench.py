"""What the engine needs from the machine: agent CLIs, directories, processes. One seam, so that tests can script it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from daemon_client.config import DaemonSettings, RuntimeInfo
from daemon_client.protocol import ClaimedTask

if TYPE_CHECKING:
    from daemon_client.agents.base import Adapter
    from daemon_client.agents.registry import Detected
    from daemon_client.workspace.exec_env import Finished, Prepared


class Workbench(Protocol):
    """The machine's side of a run. Every call may take long; none may block the event loop."""

    def adapter_for(self, provider: str) -> Adapter:
        """The adapter of a provider or protocol family; LookupError when there is none."""

    async def detect(self, settings: DaemonSettings) -> list[Detected]:
        """Every agent CLI that was looked for, usable or with the reason why not."""

    async def detect_profile(self, command: str, settings: DaemonSettings) -> Detected:
        """A runtime profile's command; its `path` is empty when it is not on this machine."""

    async def prepare(
        self,
        task: ClaimedTask,
        *,
        settings: DaemonSettings,
        runtime: RuntimeInfo,
        daemon_port: int,
        server_url: str,
        slot: int,
    ) -> Prepared: ...

    async def finish(self, prepared: Prepared, task: ClaimedTask, *, outcome: str) -> Finished: ...

    async def kill_survivors(self, workspaces_root: Path) -> None: ...

    async def checkout(self, **arguments: Any) -> Any: ...

    async def ensure_repo(self, workspace_id: str, url: str) -> None: ...


class Machine:
    """The real workbench. Imports what it needs when it is first needed: a status command should not pay for it."""

    def __init__(self, settings: DaemonSettings) -> None:
        from daemon_client.workspace.repo_cache import RepoCache

        self._repos = RepoCache(settings.workspaces_root)

    def adapter_for(self, provider: str) -> Adapter:
        from daemon_client.agents.registry import adapter_for

        return adapter_for(provider)

    async def detect(self, settings: DaemonSettings) -> list[Detected]:
        import asyncio

        from daemon_client.agents.registry import detect

        return await asyncio.to_thread(detect, settings)

    async def detect_profile(self, command: str, settings: DaemonSettings) -> Detected:
        from daemon_client.agents.registry import detect_profile

        return detect_profile(command, settings.environ or os.environ)

    async def prepare(self, task: ClaimedTask, **options: Any) -> Prepared:
        from daemon_client.workspace.exec_env import prepare

        return await prepare(task, **options)

    async def finish(self, prepared: Prepared, task: ClaimedTask, *, outcome: str) -> Finished:
        from daemon_client.workspace.exec_env import finish

        return await finish(prepared, task, outcome=outcome)

    async def kill_survivors(self, workspaces_root: Path) -> None:
        from daemon_client.process import kill_survivors

        await kill_survivors(workspaces_root)

    async def checkout(self, **arguments: Any) -> Any:
        return await self._repos.checkout(**arguments)

    async def ensure_repo(self, workspace_id: str, url: str) -> None:
        await self._repos.ensure(workspace_id, url)


WorkbenchFactory = Callable[[DaemonSettings], Workbench]
