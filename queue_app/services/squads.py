"""Squads: who leads and who is in them, and which agent an issue's assignee means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from queue_app.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from queue_app.models import Agent, AuditEntry, Issue, Member, Squad, SquadMember, SquadVerdict, User
from queue_app.services.scope import Scope, one_workspace, require_admin

WRITABLE = ("name", "leader_id", "instructions")


def listing(where: Scope, *, archived: bool = False) -> list[Squad]:
    """The squads of the scope by name with their members; archived ones only if asked."""
    rows = Squad.objects.filter(workspace_id__in=where.workspace_ids).prefetch_related("members")
    if not archived:
        rows = rows.filter(archived_at=None)
    return list(rows.order_by("name", "id"))


def find(where: Scope, squad_id: UUID) -> Squad:
    """A squad of the scope, archived ones included, or NotFoundError."""
    found = Squad.objects.filter(id=squad_id, workspace_id__in=where.workspace_ids).first()
    if found is None:
        raise NotFoundError("squad not found")
    return found


@transaction.atomic
def create(where: Scope, values: Mapping[str, Any]) -> Squad:
    """Make a squad of `name`, `leader_id`, `instructions` and `members`; admins only.

    Each member is `{"member_type": "agent" | "member", "member_id": id}` of the same workspace. Raises ConflictError
    for a taken name, InvalidError with the field, ForbiddenError, NotFoundError.
    """
    workspace_id = one_workspace(where, values.get("workspace_id"))
    require_admin(where, workspace_id)
    squad = Squad(workspace_id=workspace_id)
    return _write(where, squad, values, "squad.create")


@transaction.atomic
def update(where: Scope, squad_id: UUID, values: Mapping[str, Any]) -> Squad:
    """Change the given fields; `members` replaces them all, `archived` true stops new work for it. Admins only.

    Tasks that wait or run keep the leader that they were made for.
    """
    squad = find(where, squad_id)
    require_admin(where, squad.workspace_id)
    if values.get("archived") is not None:
        squad.archived_at = (squad.archived_at or timezone.now()) if values["archived"] else None
    return _write(where, squad, values, "squad.update")


def _write(where: Scope, squad: Squad, values: Mapping[str, Any], verb: str) -> Squad:
    for name in WRITABLE:
        if name in values:
            setattr(squad, name, values[name])
    leads = Agent.objects.filter(id=squad.leader_id, workspace_id=squad.workspace_id, archived_at=None)
    if not leads.exists():
        raise InvalidError("leader_id: no such agent in this workspace", field="leader_id")
    try:
        with transaction.atomic():
            squad.save()
    except IntegrityError as error:
        if "uq_squad_name" in str(error):
            text = f"name: {squad.name!r} is taken in this workspace"
            raise ConflictError(text, code="name_taken") from None
        raise
    if values.get("members") is not None:
        _replace_members(squad, values["members"])
    AuditEntry.objects.create(
        workspace_id=squad.workspace_id,
        actor_id=where.caller.user.id,
        actor=where.caller.actor,
        verb=verb,
        object_type="squad",
        object_id=squad.id,
        detail={"name": squad.name, "changed": sorted(values)},
    )
    return squad


def _replace_members(squad: Squad, members: Iterable[Mapping[str, Any]]) -> None:
    wanted = {(str(one["member_type"]), UUID(str(one["member_id"]))) for one in members}
    for kind, ident in wanted:
        rows = Agent.objects.filter(id=ident) if kind == "agent" else Member.objects.filter(user_id=ident)
        if not rows.filter(workspace_id=squad.workspace_id).exists():
            raise InvalidError(f"members: no such {kind} in this workspace: {ident}", field="members")
    SquadMember.objects.filter(squad=squad).delete()
    SquadMember.objects.bulk_create(
        SquadMember(squad=squad, member_type=kind, member_id=ident) for kind, ident in sorted(wanted)
    )


def judge(where: Scope, issue: Issue, *, outcome: str, reason: str) -> SquadVerdict:
    """Keep what the leader decided about an issue in the run whose token calls; a repeat replaces it.

    After `no_action` the run's last words are not posted on the issue. Raises ForbiddenError for anyone but a task of
    the squad's leader on this issue.
    """
    task = where.caller.task
    if task is None or not task.is_leader_task or task.squad_id is None or task.issue_id != issue.id:
        raise ForbiddenError("only a squad leader's task may judge, and only its own issue")
    verdict, _ = SquadVerdict.objects.update_or_create(
        task_id=task.id,
        defaults={
            "workspace_id": issue.workspace_id,
            "issue": issue,
            "squad_id": task.squad_id,
            "outcome": outcome,
            "reason": reason,
        },
    )
    return verdict


# -------------------------------------------------------------------------------------------------- what it means


def agent_of(issue: Issue) -> Agent | None:
    """The agent that the issue's assignee means: itself, or the leader of a squad that is not archived."""
    return meant(issue.workspace_id, issue.assignee_type, issue.assignee_id)


def meant(workspace_id: UUID, kind: str, ident: UUID | None) -> Agent | None:
    """The agent that an assignee of this kind and id means, None for people and for nobody."""
    if ident is None or kind not in ("agent", "squad"):
        return None
    if kind == "agent":
        return Agent.objects.filter(id=ident).select_related("runtime").first()
    squad = Squad.objects.filter(id=ident, workspace_id=workspace_id, archived_at=None)
    found = squad.select_related("leader__runtime").first()
    return found.leader if found else None


def led_by(issue: Issue, agent: Agent) -> UUID | None:
    """The squad that an issue is assigned to, if this agent leads it: its task is then a leader's."""
    if issue.assignee_type != "squad" or issue.assignee_id is None:
        return None
    led = Squad.objects.filter(id=issue.assignee_id, leader=agent, archived_at=None)
    return led.values_list("id", flat=True).first()


def briefings(squad_ids: Iterable[UUID | str]) -> dict[str, dict[str, str]]:
    """`name` and `briefing` (text for the leader) by squad id; at most four statements, none for no squad."""
    ids = {str(squad_id) for squad_id in squad_ids}
    if not ids:
        return {}
    squads = list(Squad.objects.filter(id__in=ids).prefetch_related("members"))
    members = [member for squad in squads for member in squad.members.all()]
    agents = {m.member_id for m in members if m.member_type == "agent"}
    people = {m.member_id for m in members if m.member_type == "member"}
    names: dict[UUID, str] = {}
    if agents:
        names.update(Agent.objects.filter(id__in=agents, archived_at=None).values_list("id", "name"))
    if people:
        found = User.objects.filter(id__in=people)
        names.update((user.pk, f"{user.get_full_name() or user.username} (a person)") for user in found)
    return {str(squad.id): {"name": squad.name, "briefing": _briefing(squad, names)} for squad in squads}


def _briefing(squad: Squad, names: Mapping[UUID, str]) -> str:
    listed = "\n".join(f"* @{names[m.member_id]}" for m in squad.members.all() if m.member_id in names)
    parts = [
        f"You lead the squad “{squad.name}”. Decide who does the work; hand a part to a member by naming them in a "
        "comment on the issue. Members act only when they are named. Before you end, say what you decided: `multica "
        "squad activity ISSUE action|no_action|failed --reason TEXT`.",
        f"Members:\n\n{listed}" if listed else "The squad has no other members.",
        squad.instructions.strip(),
    ]
    return "\n\n".join(part for part in parts if part)
