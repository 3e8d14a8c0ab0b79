"""A daemon tells which agent CLIs and profile commands its machine offers to one workspace."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connection, transaction

from queue_app import events
from queue_app.auth import Caller
from queue_app.conf import conf
from queue_app.errors import ConflictError, InvalidError
from queue_app.models import RuntimeProfile, Workspace
from queue_app.models.base import new_id
from queue_app.services import liveness
from queue_app.services.access import workspace_of
from queue_app.sql.runtimes import ADOPT, REGISTER_BUILTIN, REGISTER_PROFILE
from queue_app.wire.daemon import Register, RuntimeEntry, ident_of

PROVIDER_LIMIT = 64
NAME_LIMIT = 200
MOST_RUNTIMES = 200

Entry = dict[str, Any]


def register(caller: Caller, body: Register, *, capabilities: Sequence[str] = ()) -> dict[str, Any]:
    """Make or refresh the machine's runtimes and answer them with the workspace's repositories and settings.

    A runtime is found by (workspace, daemon, provider), or (workspace, daemon, profile), and keeps its id for ever;
    those that are not mentioned are left alone. Raises InvalidError with the field, NotFoundError for the workspace,
    ConflictError for a disabled profile.
    """
    daemon_id = body.daemon_id.strip()
    if not daemon_id:
        raise InvalidError("daemon_id: is required", field="daemon_id")
    if not body.workspace_id:
        raise InvalidError("workspace_id: is required", field="workspace_id")
    workspace = workspace_of(caller, ident_of(body.workspace_id))
    if not body.runtimes and not body.failed_profiles:
        raise InvalidError("runtimes: name at least one", field="runtimes")
    if len(body.runtimes) > MOST_RUNTIMES:
        raise InvalidError(f"runtimes: at most {MOST_RUNTIMES}", field="runtimes")
    builtin, custom = _entries(body, _profiles(workspace, body.runtimes), capabilities)
    rows = _write(caller, workspace, daemon_id, body, builtin, custom)
    _after(workspace.pk, daemon_id, rows)
    return {"runtimes": [_told(row) for row in rows], **repos_of(workspace)}


def repos_of(workspace: Workspace) -> dict[str, Any]:
    """The checkout allow-list of a workspace, its version and the settings that a checkout obeys.

    The version is the SHA-256 of the sorted addresses, so it is never empty.
    """
    given = workspace.repos if isinstance(workspace.repos, list) else []
    repos = [_repo(repo) for repo in given if isinstance(repo, dict) and isinstance(repo.get("url"), str)]
    urls = sorted(repo["url"] for repo in repos)
    settings = workspace.settings if isinstance(workspace.settings, dict) else {}
    return {
        "repos": repos,
        "repos_version": hashlib.sha256("\n".join(urls).encode()).hexdigest(),
        "settings": {name: bool(settings.get(name, True)) for name in ("github_enabled", "co_authored_by_enabled")},
    }


def _repo(repo: dict[str, Any]) -> dict[str, str]:
    optional = {name: repo[name] for name in ("description", "ref") if isinstance(repo.get(name), str)}
    return {"url": repo["url"], **optional}


def _profiles(workspace: Workspace, runtimes: Iterable[RuntimeEntry]) -> dict[UUID, RuntimeProfile]:
    given = (ident_of(entry.profile_id) for entry in runtimes if entry.profile_id)
    wanted = {profile_id for profile_id in given if profile_id is not None}
    found = RuntimeProfile.objects.filter(workspace=workspace, pk__in=wanted) if wanted else ()
    return {profile.pk: profile for profile in found}


def _entries(
    body: Register, profiles: dict[UUID, RuntimeProfile], capabilities: Sequence[str]
) -> tuple[list[Entry], list[Entry]]:
    """Built-in and custom runtimes as rows, each key once: the last one that names it wins."""
    builtin: dict[str, Entry] = {}
    custom: dict[UUID, Entry] = {}
    for index, given in enumerate(body.runtimes):
        entry = _entry(index, given, body, capabilities)
        if not given.profile_id:
            builtin[entry["provider"]] = entry
            continue
        profile = profiles.get(ident_of(given.profile_id) or UUID(int=0))
        if profile is None:
            field = f"runtimes[{index}].profile_id"
            raise InvalidError(f"{field}: no such profile in this workspace", field=field)
        if not profile.enabled:
            raise ConflictError(f"runtimes[{index}].profile_id: the profile is disabled", code="profile_disabled")
        custom[profile.pk] = {**entry, "profile_id": str(profile.pk)}
    return list(builtin.values()), list(custom.values())


def _entry(index: int, given: RuntimeEntry, body: Register, capabilities: Sequence[str]) -> Entry:
    provider = given.type.strip().lower()
    if not provider or len(provider) > PROVIDER_LIMIT:
        field = f"runtimes[{index}].type"
        raise InvalidError(f"{field}: must have 1 to {PROVIDER_LIMIT} characters", field=field)
    metadata = {
        "version": given.version,
        "cli_version": body.cli_version,
        "launched_by": body.launched_by,
        "device_name": body.device_name,
        "capabilities": sorted(set(capabilities)),
    }
    name = (given.name.strip() or provider)[:NAME_LIMIT]
    return {"id": str(new_id()), "name": name, "provider": provider, "profile_id": None, "metadata": metadata}


def _write(
    caller: Caller, workspace: Workspace, daemon_id: str, body: Register, builtin: list[Entry], custom: list[Entry]
) -> list[dict[str, Any]]:
    params = {
        "workspace": workspace.pk,
        "daemon": daemon_id,
        "owner": caller.user.pk,
        "device": body.device_name,
        "freshness": conf.RUNTIME_FRESHNESS,
        "legacy": [old for old in body.legacy_daemon_ids if old and old != daemon_id],
    }
    if params["legacy"]:
        _adopt(params)
    with transaction.atomic(), connection.cursor() as cursor:
        rows = []
        for sql, entries in ((REGISTER_BUILTIN, builtin), (REGISTER_PROFILE, custom)):
            if entries:
                cursor.execute(sql, {**params, "entries": json.dumps(entries)})
                names = [column.name for column in cursor.description]
                rows += [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return rows


def _adopt(params: dict[str, Any]) -> None:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(ADOPT, params)
    except IntegrityError:
        # Another registration of the same machine made the new row first: then that is the one that stays.
        return


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": str(row["id"]),
        "name": row["name"],
        "provider": row["provider"],
        "status": row["status"],
        "profile_id": str(row["profile_id"]) if row["profile_id"] else None,
    }


def _after(workspace_id: UUID, daemon_id: str, rows: list[dict[str, Any]]) -> None:
    liveness.keep([(row["id"], workspace_id) for row in rows])
    if rows:
        payload = {"daemon_id": daemon_id, "runtime_ids": [str(row["id"]) for row in rows]}
        events.publish(workspace_id, "daemon:register", payload)
