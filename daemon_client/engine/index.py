"""What this daemon has registered: workspaces, their runtimes, their repositories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from daemon_client.config import RuntimeInfo
from daemon_client.protocol import Json


@dataclass
class Workspace:
    """One registered workspace. `unrecovered` are runtimes that may not claim before their orphans are recovered."""

    id: str
    name: str = ""
    runtimes: dict[str, RuntimeInfo] = field(default_factory=dict)
    repos: list[Json] = field(default_factory=list)
    repos_version: str = ""
    settings: Json = field(default_factory=dict)
    profile_signature: str = ""
    unrecovered: set[str] = field(default_factory=set)


class RuntimeIndex:
    """The registered runtimes. Listeners are called after every change of the set of runtime ids."""

    def __init__(self) -> None:
        self.workspaces: dict[str, Workspace] = {}
        self._listeners: list[Callable[[], None]] = []
        self._known: frozenset[str] = frozenset()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def changed(self) -> None:
        """Tell the listeners if the set of runtimes is another than last time."""
        ids = frozenset(self.runtime_ids())
        if ids == self._known:
            return
        self._known = ids
        for listener in self._listeners:
            listener()

    def runtime_ids(self) -> list[str]:
        return sorted(rid for workspace in self.workspaces.values() for rid in workspace.runtimes)

    def claimable_ids(self) -> list[str]:
        """Runtimes whose orphans have been settled: recovery after a claim would kill the work just claimed."""
        return sorted(
            rid
            for workspace in self.workspaces.values()
            for rid in workspace.runtimes
            if rid not in workspace.unrecovered
        )

    def runtime(self, runtime_id: str) -> RuntimeInfo | None:
        for workspace in self.workspaces.values():
            if found := workspace.runtimes.get(runtime_id):
                return found
        return None

    def unrecovered(self) -> list[RuntimeInfo]:
        return [
            workspace.runtimes[rid]
            for workspace in self.workspaces.values()
            for rid in sorted(workspace.unrecovered)
            if rid in workspace.runtimes
        ]

    def recovered(self, runtime: RuntimeInfo) -> None:
        if workspace := self.workspaces.get(runtime.workspace_id):
            workspace.unrecovered.discard(runtime.id)

    def drop_runtime(self, runtime_id: str) -> RuntimeInfo | None:
        for workspace in self.workspaces.values():
            if found := workspace.runtimes.pop(runtime_id, None):
                workspace.unrecovered.discard(runtime_id)
                self.changed()
                return found
        return None
