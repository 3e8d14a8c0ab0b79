"""Tells the server which agent CLIs this machine offers to a workspace, and learns their runtime ids."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from daemon_client.config import RuntimeInfo
from daemon_client.engine.context import Context
from daemon_client.engine.index import Workspace
from daemon_client.errors import DaemonError, DecodeError
from daemon_client.protocol import Json

if TYPE_CHECKING:
    from daemon_client.agents.registry import Detected

log = logging.getLogger(__name__)

DETECTION_FRESHNESS = 120.0
_NAMES = {
    "omp": "Oh-My-Pi",
    "dsh": "DeepSeek Harness",
    "qoderclicn": "Qoder CN",
    "traecli": "Trae",
    "qwen": "Qwen Code",
}


class NothingToRegister(DaemonError):
    """No agent CLI was found on this machine and no runtime profile can be used here."""

    def __init__(self) -> None:
        super().__init__(
            "no coding agent was found: install one (for example the claude CLI), set MULTICA_<NAME>_PATH to one, "
            "or add a runtime profile on the server"
        )


@dataclass
class Offer:
    """What a workspace is offered: the payload, and what to launch behind each entry."""

    entries: list[Json] = field(default_factory=list)
    failed: list[Json] = field(default_factory=list)
    launch: dict[tuple[str, str], RuntimeInfo] = field(default_factory=dict)

    def add(self, entry: Json, info: RuntimeInfo) -> None:
        self.entries.append(entry)
        self.launch[_key(info.provider, info.profile_id)] = info


def _key(provider: str, profile_id: str) -> tuple[str, str]:
    # A profile is known by its own id: two profiles may share a protocol family, and so a provider.
    return ("", profile_id) if profile_id else (provider, "")


def profile_signature(profiles: list[Json]) -> str:
    """A digest that changes exactly when what would be registered from these profiles changes."""
    fields = ("id", "enabled", "protocol_family", "command_name", "visibility", "fixed_args", "display_name")
    rows = sorted(json.dumps([profile.get(name) for name in fields]) for profile in profiles)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest() if rows else "0"


def legacy_daemon_ids(profile: str) -> list[str]:
    """Names under which an old version of this machine's daemon may be known to the server."""
    host = socket.gethostname()
    base = host.removesuffix(".local")
    names = [base, f"{base}.local"] if base else []
    return names + ([f"{name}-{profile}" for name in names] if profile else [])


class Registrar:
    """Registers one workspace at a time. The order of the payload is stable, so two equal starts send equal bytes."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._detected: list[Detected] = []
        self._detected_at = float("-inf")

    async def profiles(self, workspace_id: str) -> list[Json] | None:
        """The enabled runtime profiles; None when they cannot be had, which never stands in the way of the rest."""
        try:
            return await self._ctx.api.profiles(workspace_id)
        except DaemonError as error:
            log.info("runtime profiles of workspace %s: %s", workspace_id, error)
            return None

    async def register(self, workspace: Workspace, profiles: list[Json] | None = None) -> None:
        """Register and take over the answer. Raises when the server refuses or when there is nothing to offer."""
        if profiles is None:
            profiles = await self.profiles(workspace.id)
        offer = await self._offer(workspace.id, profiles or [])
        if not offer.entries and not offer.failed:
            raise NothingToRegister
        answer = await self._ctx.api.register(self._payload(workspace.id, offer))
        runtimes = _read_runtimes(answer, workspace.id, offer)
        if not runtimes and offer.entries:
            raise DecodeError("registration answered without any of the runtimes that were offered")
        workspace.runtimes = runtimes
        _read_repos(answer, workspace)
        if profiles is not None:
            workspace.profile_signature = profile_signature(profiles)

    def _payload(self, workspace_id: str, offer: Offer) -> Json:
        settings = self._ctx.settings
        return {
            "workspace_id": workspace_id,
            "daemon_id": settings.daemon_id,
            "legacy_daemon_ids": legacy_daemon_ids(settings.profile),
            "device_name": settings.device_name,
            "cli_version": settings.cli_version,
            "launched_by": settings.launched_by,
            "runtimes": offer.entries,
            "failed_profiles": offer.failed or None,
        }

    async def _offer(self, workspace_id: str, profiles: list[Json]) -> Offer:
        offer = Offer()
        for found in sorted(await self._detect(), key=lambda each: each.provider):
            if found.skipped_reason or not found.path:
                continue
            name = f"{found.display_name or found.provider} ({self._ctx.settings.device_name})"
            entry = {"name": name, "type": found.provider, "version": found.version, "status": "online"}
            path = (str(found.path),)
            offer.add(entry, RuntimeInfo("", workspace_id, found.provider, name, "", path, (), found.version))
        for profile in sorted(profiles, key=lambda each: str(each.get("id"))):
            await self._offer_profile(offer, workspace_id, profile)
        return offer

    async def _detect(self) -> list[Detected]:
        now = self._ctx.clock.monotonic()
        if now - self._detected_at >= DETECTION_FRESHNESS:
            self._detected = await self._ctx.workbench.detect(self._ctx.settings)
            self._detected_at = now
        return self._detected

    def skipped(self) -> dict[str, str]:
        return {found.provider: found.skipped_reason for found in self._detected if found.skipped_reason}

    async def _offer_profile(self, offer: Offer, workspace_id: str, profile: Json) -> None:
        profile_id, command = str(profile.get("id") or ""), str(profile.get("command_name") or "").strip()
        family = str(profile.get("protocol_family") or "").strip().lower()
        if not profile_id or not command or not family or profile.get("enabled") is False:
            return
        arguments = profile.get("fixed_args")
        fixed = tuple(str(each) for each in arguments) if isinstance(arguments, list) else ()
        found, problem = await self._resolve(profile_id, command, family)
        if found is None:
            offer.failed.append({"profile_id": profile_id, "command_name": command, "reason": problem})
            return
        name = f"{profile.get('display_name') or command} ({self._ctx.settings.device_name})"
        entry = {"name": name, "type": family, "version": found.version, "status": "online", "profile_id": profile_id}
        path = (str(found.path),)
        offer.add(entry, RuntimeInfo("", workspace_id, family, name, profile_id, path, fixed, found.version))

    async def _resolve(self, profile_id: str, command: str, family: str) -> tuple[Detected | None, str]:
        """A profile's command on this machine, or why it cannot be used here."""
        try:
            self._ctx.workbench.adapter_for(family)
        except LookupError:
            return None, f"unknown protocol family {family}"
        settings = self._ctx.settings
        chosen = settings.profile_command_overrides.get(profile_id) or command
        found = await self._ctx.workbench.detect_profile(chosen, settings)
        return (found, "") if found.path else (None, f"{chosen} was not found on this machine")


def _read_runtimes(answer: Json, workspace_id: str, offer: Offer) -> dict[str, RuntimeInfo]:
    found: dict[str, RuntimeInfo] = {}
    runtimes = answer.get("runtimes")
    for item in runtimes if isinstance(runtimes, list) else []:
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            continue
        provider, profile_id = str(item.get("provider") or "").lower(), str(item.get("profile_id") or "")
        info = offer.launch.get(_key(provider, profile_id))
        if info is None:
            log.warning("the server registered a %s runtime that was not offered", provider)
            continue
        found[item["id"]] = RuntimeInfo(
            item["id"],
            workspace_id,
            info.provider,
            info.name,
            profile_id,
            info.executable,
            info.fixed_args,
            info.version,
        )
    return found


def _read_repos(answer: Json, workspace: Workspace) -> None:
    """Take over the repositories that may be checked out. An empty version keeps the list that is known."""
    version, repos, settings = answer.get("repos_version"), answer.get("repos"), answer.get("settings")
    if (isinstance(version, str) and version) or not workspace.repos_version:
        workspace.repos = [repo for repo in repos if isinstance(repo, dict)] if isinstance(repos, list) else []
        workspace.repos_version = version if isinstance(version, str) else ""
    if isinstance(settings, dict):
        workspace.settings = settings
