"""A workspace's own settings: its name and repositories, its members, its runtime profiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction

from queue_app import events
from queue_app.errors import ConflictError, NotFoundError
from queue_app.models import AuditEntry, Member, RuntimeProfile, Workspace
from queue_app.services.scope import Scope, find_workspace, require_admin

WRITABLE = frozenset({"name", "description", "context", "repos"})
PROFILE_WRITABLE = frozenset({"display_name", "command_name", "description", "fixed_args", "visibility", "enabled"})


@transaction.atomic
def update(where: Scope, workspace_id: UUID, values: Mapping[str, Any]) -> Workspace:
    """Change a workspace; admins only. `repos` replaces the whole list, each url once, the first wins."""
    find_workspace(where, workspace_id)
    require_admin(where, workspace_id)
    workspace = Workspace.objects.select_for_update(no_key=True).get(id=workspace_id)
    fields = {name: value for name, value in values.items() if name in WRITABLE}
    if "repos" in fields:
        fields["repos"] = _once(fields["repos"])
    for name, value in fields.items():
        setattr(workspace, name, "" if value is None else value)
    # The counter of issue numbers is in this row: never write it back from here.
    workspace.save(update_fields=[*fields, "updated_at"])
    _record(where, "workspace.update", "workspace", workspace.id, workspace.id, sorted(fields))
    _tell_daemons(workspace.id, "daemon:workspaces_changed", {})
    return workspace


def _once(repos: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    by_url: dict[str, Mapping[str, Any]] = {}
    for repo in repos:
        by_url.setdefault(repo["url"], repo)
    return list(by_url.values())


def members(where: Scope, workspace_id: UUID) -> list[Member]:
    """The members of a workspace with their users, by name of login."""
    find_workspace(where, workspace_id)
    return list(Member.objects.filter(workspace_id=workspace_id).select_related("user").order_by("user__username"))


def profiles(where: Scope, workspace_id: UUID) -> list[RuntimeProfile]:
    """The runtime profiles of a workspace by name."""
    find_workspace(where, workspace_id)
    return list(RuntimeProfile.objects.filter(workspace_id=workspace_id).order_by("display_name"))


@transaction.atomic
def create_profile(where: Scope, workspace_id: UUID, values: Mapping[str, Any]) -> RuntimeProfile:
    """Offer a command as a runtime. Admins only: daemons of every member will run it."""
    find_workspace(where, workspace_id)
    require_admin(where, workspace_id)
    fields = {name: value for name, value in values.items() if name in PROFILE_WRITABLE}
    profile = RuntimeProfile(workspace_id=workspace_id, protocol_family=values["protocol_family"], **fields)
    return _save_profile(where, profile, "runtime_profile.create", sorted(fields))


@transaction.atomic
def update_profile(where: Scope, profile_id: UUID, values: Mapping[str, Any]) -> RuntimeProfile:
    """Change a runtime profile; admins only. Its protocol family stays what it was."""
    found = RuntimeProfile.objects.filter(id=profile_id, workspace_id__in=where.workspace_ids)
    profile = found.select_for_update(no_key=True).first()
    if profile is None:
        raise NotFoundError("runtime profile not found")
    require_admin(where, profile.workspace_id)
    fields = {name: value for name, value in values.items() if name in PROFILE_WRITABLE}
    for name, value in fields.items():
        setattr(profile, name, value)
    return _save_profile(where, profile, "runtime_profile.update", sorted(fields))


def _save_profile(where: Scope, profile: RuntimeProfile, verb: str, changed: list[str]) -> RuntimeProfile:
    try:
        with transaction.atomic():
            profile.save()
    except IntegrityError as error:
        if "uq_runtime_profile_name" in str(error):
            raise ConflictError(
                f"display_name: {profile.display_name!r} is taken in this workspace", code="name_taken"
            ) from None
        raise
    _record(where, verb, "runtime_profile", profile.id, profile.workspace_id, changed)
    payload = {"workspace_id": str(profile.workspace_id)}
    _tell_daemons(profile.workspace_id, "daemon:runtime_profiles_changed", payload)
    return profile


def _tell_daemons(workspace_id: UUID, frame_type: str, payload: dict[str, Any]) -> None:
    """After commit, tell the daemons of every member to look again."""
    users = list(Member.objects.filter(workspace_id=workspace_id).values_list("user_id", flat=True))

    def send() -> None:
        for user_id in users:
            events.hint(events.user_group(user_id), frame_type, payload)

    transaction.on_commit(send)


def _record(where: Scope, verb: str, kind: str, ident: UUID, workspace_id: UUID, changed: list[str]) -> None:
    AuditEntry.objects.create(
        workspace_id=workspace_id,
        actor_id=where.caller.user.id,
        actor=where.caller.actor,
        verb=verb,
        object_type=kind,
        object_id=ident,
        detail={"changed": changed},
    )
