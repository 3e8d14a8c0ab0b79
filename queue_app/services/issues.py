"""Issues: make, find, change. What an assignment starts is decided in `enqueue`; nothing here touches a task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from queue_app import events
from queue_app.errors import ConflictError, InvalidError, NotFoundError
from queue_app.models import Agent, AgentTask, Issue, Member, Squad
from queue_app.services import cancel, enqueue, squads
from queue_app.services.enqueue import Enqueued
from queue_app.services.scope import Scope, one_workspace, require_admin

CLOSED = ("done", "cancelled")
IDLE = ("backlog", *CLOSED)
"""Statuses in which an assigned agent is not started: not yet wanted, or over."""

WRITABLE = frozenset(
    {
        "title",
        "description",
        "status",
        "priority",
        "assignee_type",
        "assignee_id",
        "parent_issue_id",
        "stage",
        "position",
        "start_date",
        "due_date",
    }
)


@dataclass(frozen=True)
class Written:
    """An issue as it is now, and what became of the work that the change asked for (None: it asked for none)."""

    issue: Issue
    run: Enqueued | None = None


_KEY = re.compile(r"([A-Za-z][A-Za-z0-9]{0,7})-(\d{1,9})")


class DuplicateIssueError(ConflictError):
    """An open issue of the workspace has this title already. The text names it."""

    code = "active_duplicate_issue"


# ---------------------------------------------------------------------------------------------------------- finding


def visible(where: Scope) -> QuerySet[Issue]:
    """The issues of the scope, with what an answer needs of their workspace."""
    return Issue.objects.filter(workspace_id__in=where.workspace_ids).select_related("workspace")


def find(where: Scope, ref: str | UUID, *, lock: bool = False) -> Issue:
    """An issue by id or key (`MUL-12`, any case); one outside the scope is missing.

    A key that several workspaces of the caller have is refused, and the text says how to be precise.
    """
    rows = visible(where)
    if lock:
        rows = rows.select_for_update(of=("self",), no_key=True)
    found = list(rows.filter(**_by_ref(ref))[:2])
    if not found:
        raise NotFoundError("issue not found")
    if len(found) > 1:
        raise InvalidError(f"{ref} is an issue of several workspaces; name one with workspace_id", field="workspace_id")
    return found[0]


def _by_ref(ref: str | UUID) -> dict[str, Any]:
    if isinstance(ref, UUID):
        return {"id": ref}
    if key := _KEY.fullmatch(ref):
        return {"workspace__issue_prefix__iexact": key[1], "number": int(key[2])}
    try:
        return {"id": UUID(ref)}
    except ValueError:
        raise NotFoundError("issue not found") from None


# --------------------------------------------------------------------------------------------------------- creating


@transaction.atomic
def create(where: Scope, values: Mapping[str, Any]) -> Written:
    """Make an issue and, if it is assigned to an agent, a task for it, in one transaction.

    `values` holds checked fields of the API; `workspace_id`, `allow_duplicate`, `suppress_run`, `origin_type` and
    `origin_id` among them. Numbers have no gaps: a refusal gives its number back. Raises DuplicateIssueError,
    InvalidError with the field, NotFoundError.
    """
    workspace_id = one_workspace(where, values.get("workspace_id"))
    number = _next_number(workspace_id)
    if not values.get("allow_duplicate"):
        _refuse_duplicate(where, workspace_id, values["title"])
    fields = {name: value for name, value in values.items() if name in WRITABLE and value is not None}
    _check_parent(workspace_id, fields.get("parent_issue_id"), child=None)
    agent = _check_assignee(workspace_id, fields)
    issue = Issue.objects.create(
        workspace_id=workspace_id,
        number=number,
        creator_type=where.author_type,
        creator_id=where.author_id,
        **{**_origin(where, values), **fields},
    )
    issue = visible(where).get(id=issue.id)
    run = None
    if agent is not None and issue.status not in IDLE and not values.get("suppress_run"):
        run = enqueue.assign(issue, agent, caller=where.caller, handoff_note=values.get("handoff_note"))
    _tell("issue:created", issue)
    return Written(issue, run)


def _next_number(workspace_id: UUID) -> int:
    # The lock on the workspace row is held to the end of the transaction: numbers follow the order of the commits,
    # and two creations with one title see each other.
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workspace SET issue_counter = issue_counter + 1 WHERE id = %s RETURNING issue_counter",
            [workspace_id],
        )
        row = cursor.fetchone()
    if row is None:
        raise NotFoundError("workspace not found")
    return int(row[0])


def _refuse_duplicate(where: Scope, workspace_id: UUID, title: str) -> None:
    same = Issue.objects.filter(workspace_id=workspace_id, title__iexact=title.strip()).exclude(status__in=CLOSED)
    twin = same.select_related("workspace").order_by("created_at").first()
    if twin is not None:
        raise DuplicateIssueError(
            f"{twin.identifier} has this title and is still open ({twin.status}); "
            "work on that one, or send allow_duplicate to make another"
        )


def _origin(where: Scope, values: Mapping[str, Any]) -> dict[str, Any]:
    origin_type, origin_id = values.get("origin_type") or "", values.get("origin_id")
    if origin_id is None:
        return {"origin_type": origin_type}
    # A task may name only itself as the origin; a person, any task of the workspaces in scope.
    own = where.task_id in (None, origin_id)
    if not own or not AgentTask.objects.filter(id=origin_id, workspace_id__in=where.workspace_ids).exists():
        raise InvalidError("origin_id: no such task", field="origin_id")
    return {"origin_type": origin_type, "origin_id": origin_id}


def _check_parent(workspace_id: UUID, parent_id: UUID | None, child: UUID | None) -> None:
    """The parent is in the same workspace, and no issue is its own ancestor."""
    seen: set[UUID] = set()
    current = parent_id
    while current is not None:
        if current == child or current in seen:
            raise InvalidError("parent_issue_id: an issue cannot be below itself", field="parent_issue_id")
        seen.add(current)
        row = Issue.objects.filter(id=current, workspace_id=workspace_id).values_list("parent_issue_id").first()
        if row is None:
            raise InvalidError("parent_issue_id: no such issue", field="parent_issue_id")
        current = row[0]


def _check_assignee(workspace_id: UUID, fields: dict[str, Any]) -> Agent | None:
    """Complete and check an assignee given in `fields`; returns the agent if it is one."""
    kind, ident = fields.get("assignee_type") or "", fields.get("assignee_id")
    if not kind and ident is None:
        return None
    if ident is None:
        raise InvalidError("assignee_id: say who", field="assignee_id")
    if not kind:
        kind = _kind_of(workspace_id, ident)
        fields["assignee_type"] = kind
    if kind == "agent":
        return _assignable_agent(workspace_id, ident)
    if kind == "member":
        if not Member.objects.filter(workspace_id=workspace_id, user_id=ident).exists():
            raise InvalidError("assignee_id: no such member", field="assignee_id")
        return None
    if kind == "squad":
        leader = squads.meant(workspace_id, kind, ident)
        if leader is None:
            raise InvalidError("assignee_id: no such squad", field="assignee_id")
        return leader
    raise InvalidError("assignee_type: must be agent, squad or member", field="assignee_type")


def _kind_of(workspace_id: UUID, ident: UUID) -> str:
    for kind, model in (("agent", Agent), ("squad", Squad)):
        if model.objects.filter(id=ident, workspace_id=workspace_id).exists():
            return kind
    return "member"


def _assignable_agent(workspace_id: UUID, agent_id: UUID) -> Agent:
    agent = Agent.objects.filter(id=agent_id, workspace_id=workspace_id).select_related("runtime").first()
    if agent is None:
        raise InvalidError("assignee_id: no such agent", field="assignee_id")
    if agent.archived_at is not None:
        raise InvalidError(f"assignee_id: {agent.name} is archived", field="assignee_id")
    return agent


# --------------------------------------------------------------------------------------------------------- changing


@transaction.atomic
def update(where: Scope, ref: str | UUID, values: Mapping[str, Any]) -> Written:
    """Change the given fields; null clears.

    A new agent gets a task, the old one loses what it has not begun, never what it is doing (design D5). Leaving the
    backlog starts the assigned agent. No other change of status starts, stops or cancels anything. `suppress_run`
    starts nothing.
    """
    issue = find(where, ref, lock=True)
    before = (issue.assignee_type, issue.assignee_id, issue.status)
    fields = {name: value for name, value in values.items() if name in WRITABLE}
    agent = _apply(issue, fields)
    issue.save()
    moved = (issue.assignee_type, issue.assignee_id) != before[:2]
    if moved:
        cancel.cancel_waiting(issue, squads.meant(issue.workspace_id, before[0], before[1]), caller=where.caller)
    starts = agent is not None and (moved or before[2] == "backlog") and issue.status not in IDLE
    run = None
    if agent is not None and starts and not values.get("suppress_run"):
        run = enqueue.assign(issue, agent, caller=where.caller, handoff_note=values.get("handoff_note"))
    _tell("issue:updated", issue)
    return Written(issue, run)


_EMPTY: Mapping[str, Any] = {"description": "", "priority": "none", "position": 0.0}
_REQUIRED = ("title", "status")


def _apply(issue: Issue, fields: dict[str, Any]) -> Agent | None:
    """Set checked fields on the row; returns the agent that it is assigned to afterwards, if any."""
    for name in _REQUIRED:
        if name in fields and fields[name] is None:
            raise InvalidError(f"{name}: cannot be cleared", field=name)
    if "parent_issue_id" in fields:
        _check_parent(issue.workspace_id, fields["parent_issue_id"], child=issue.id)
    given: dict[str, Any] = {}
    for name in ("assignee_type", "assignee_id"):
        if name in fields:
            given[name] = fields.pop(name)
    if given:
        wanted = _merged_assignee(issue, given)
        _check_assignee(issue.workspace_id, wanted)
        issue.assignee_type, issue.assignee_id = wanted.get("assignee_type") or "", wanted.get("assignee_id")
    for name, value in fields.items():
        setattr(issue, name, _EMPTY.get(name) if value is None else value)
    agent = squads.agent_of(issue)
    return agent if agent is not None and agent.archived_at is None else None


def _merged_assignee(issue: Issue, given: Mapping[str, Any]) -> dict[str, Any]:
    # Either field cleared clears both; a new id without a type is looked up, not taken for the old type.
    if any(value is None or value == "" for value in given.values()):
        return {}
    if "assignee_id" in given:
        return dict(given)
    return {"assignee_type": given["assignee_type"], "assignee_id": issue.assignee_id}


@transaction.atomic
def delete(where: Scope, ref: str | UUID) -> None:
    """Delete an issue with its comments and tasks, for good; what runs for it is cancelled first. Admins only."""
    issue = find(where, ref, lock=True)
    require_admin(where, issue.workspace_id)
    cancel.cancel_for_issue(issue, caller=where.caller)
    _tell("issue:deleted", issue)
    issue.delete()


# --------------------------------------------------------------------------------------------------------- metadata

METADATA_KEYS = 200


@transaction.atomic
def set_metadata(where: Scope, ref: str | UUID, key: str, value: Any) -> Issue:
    """Set one key of the issue's metadata to any JSON value; others stay."""
    issue = find(where, ref, lock=True)
    if key not in issue.metadata and len(issue.metadata) >= METADATA_KEYS:
        raise InvalidError(f"key: an issue holds at most {METADATA_KEYS} keys", field="key")
    issue.metadata[key] = value
    issue.save(update_fields=["metadata", "updated_at"])
    _tell("issue:updated", issue)
    return issue


@transaction.atomic
def delete_metadata(where: Scope, ref: str | UUID, key: str) -> Issue:
    """Remove one key of the issue's metadata; a key that is not there is no error."""
    issue = find(where, ref, lock=True)
    if key in issue.metadata:
        del issue.metadata[key]
        issue.save(update_fields=["metadata", "updated_at"])
        _tell("issue:updated", issue)
    return issue


def _tell(event: str, issue: Issue) -> None:
    payload = {
        "issue_id": str(issue.id),
        "identifier": issue.identifier,
        "status": issue.status,
        "at": timezone.now().isoformat(),
    }
    workspace_id = issue.workspace_id
    transaction.on_commit(lambda: events.publish(workspace_id, event, payload))
