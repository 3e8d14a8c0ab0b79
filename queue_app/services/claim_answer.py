"""One delivered task as the daemon reads it: section 3 of the protocol, plus `claim_token`, `deliveries`, `attempt`.

The claim returns what most answers are made of; only comment tasks need a read of their own. What cannot be built is
either an accident (`AnswerError`: the delivery is put back) or will never be possible (`Rejected`: the task is ended).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from queue_app.decisions import Outcome
from queue_app.domain import sessions
from queue_app.domain.states import Kind
from queue_app.models import Agent, Comment, User

COMMENT_BUDGET: Final = 512 * 1024
"""Bytes of comment text in one task. The trigger is always there; others follow oldest first while they fit."""

Row = Mapping[str, Any]


class AnswerError(Exception):
    """The answer could not be built this time; the delivery is put back by its token."""


class Rejected(Exception):
    """The answer can never be built: the task fails for `reason`, or without one is cancelled; `outcome` is kept."""

    def __init__(self, outcome: Outcome, reason: str | None, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome
        self.reason = reason


@dataclass(frozen=True)
class Answer:
    """The wire dict of a task, and the comments whose text it really carries."""

    wire: dict[str, Any]
    embedded: list[str]


@dataclass(frozen=True)
class Remark:
    """A comment as an answer embeds it."""

    id: str
    thread_id: str
    author_type: str
    author_name: str
    content: str
    created_at: str


@dataclass(frozen=True)
class Shared:
    """Rows that several answers of one claim use: by id."""

    agents: Mapping[str, Row] = field(default_factory=dict)
    workspaces: Mapping[str, Row] = field(default_factory=dict)
    issues: Mapping[str, Row] = field(default_factory=dict)
    users: Mapping[str, Row] = field(default_factory=dict)
    runtimes: Mapping[str, Row] = field(default_factory=dict)
    remarks: Mapping[str, Remark] = field(default_factory=dict)
    squads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def comment_ids(task: Row) -> list[str]:
    """Ids of the comments that a task wants to carry: the folded ones in their order, then the trigger."""
    ids = [*task["coalesced_comment_ids"], task["trigger_comment_id"]]
    return [comment_id for comment_id in dict.fromkeys(ids) if comment_id]


def read_remarks(tasks: Iterable[Row]) -> dict[str, Remark]:
    """The comments of these tasks that still exist, by id; at most three statements, none without comments."""
    wanted = {comment_id for task in tasks for comment_id in comment_ids(task)}
    if not wanted:
        return {}
    rows = list(Comment.objects.filter(id__in=wanted).order_by("created_at", "id"))
    names = _names(rows)
    return {str(row.id): _remark(row, names) for row in rows}


def _names(rows: Sequence[Comment]) -> dict[UUID, str]:
    members = {row.author_id for row in rows if row.author_type == "member" and row.author_id}
    agents = {row.author_id for row in rows if row.author_type == "agent" and row.author_id}
    names: dict[UUID, str] = {}
    if members:
        names.update((user.pk, user.get_full_name() or user.username) for user in User.objects.filter(id__in=members))
    if agents:
        names.update(Agent.objects.filter(id__in=agents).values_list("id", "name"))
    return names


def _remark(row: Comment, names: Mapping[UUID, str]) -> Remark:
    return Remark(
        id=str(row.id),
        thread_id=str(row.parent_id or row.id),
        author_type=row.author_type,
        author_name=names.get(row.author_id, "") if row.author_id else "",
        content=row.content,
        created_at=row.created_at.isoformat(),
    )


def build(task: Row, shared: Shared, secret: str) -> Answer:
    """The answer for one delivered row.

    Raises Rejected when agent, runtime and workspace do not fit each other or a comment task has lost all its comments,
    and AnswerError for anything that another try may mend.
    """
    try:
        agent = _agent_of(task, shared)
        wire = {**_identity(task), "auth_token": secret, "agent": _agent(agent, task)}
        _brief_leader(wire, task, shared)
        wire.update(_context(task, shared))
        wire.update(_resume(task, shared))
        talk, embedded = _talk(task, shared)
        wire.update(talk)
        wire.update(_of_kind(task))
        wire["delivered_comment_ids"] = embedded
        return Answer(wire, embedded)
    except Rejected:
        raise
    except Exception as error:
        raise AnswerError(f"{type(error).__name__}: {error}") from error


def _agent_of(task: Row, shared: Shared) -> Row:
    agent = shared.agents.get(task["agent_id"])
    if agent is None or agent["workspace_id"] != task["workspace_id"]:
        text = "the task's agent is missing or belongs to another workspace"
        raise Rejected(Outcome.ERROR_IDENTITY, "invalid_task_identity", text)
    runtime = shared.runtimes.get(task["runtime_id"])
    if runtime is not None and runtime.get("workspace_id") not in (None, task["workspace_id"]):
        text = "the task's runtime belongs to another workspace"
        raise Rejected(Outcome.ERROR_IDENTITY, "invalid_task_identity", text)
    return agent


_PLAIN: Final = (
    "id",
    "agent_id",
    "runtime_id",
    "workspace_id",
    "kind",
    "status",
    "priority",
    "attempt",
    "max_attempts",
    "deliveries",
    "claim_token",
    "created_at",
    "dispatched_at",
    "prepare_lease_expires_at",
)
_TEXTS: Final = (
    "issue_id",
    "chat_session_id",
    "autopilot_id",
    "autopilot_run_id",
    "parent_task_id",
    "handoff_note",
    "trigger_summary",
    "squad_id",
)


def _identity(task: Row) -> dict[str, Any]:
    wire = {name: task[name] for name in _PLAIN}
    wire.update((name, task[name] or "") for name in _TEXTS)
    wire["is_leader_task"] = bool(task["is_leader_task"])
    wire["leader_role_resolved"] = True
    return wire


def _brief_leader(wire: dict[str, Any], task: Row, shared: Shared) -> None:
    """Give a leader its squad's briefing; without one the run is an ordinary one of the agent."""
    squad = shared.squads.get(task["squad_id"] or "")
    if not wire["is_leader_task"]:
        return
    wire["is_leader_task"] = squad is not None
    if squad is not None:
        wire["squad_name"] = squad["name"]
        own = wire["agent"]["instructions"]
        wire["agent"]["instructions"] = f"{own}\n\n{squad['briefing']}".strip()


def _agent(agent: Row, task: Row) -> dict[str, Any]:
    return {
        "id": agent["id"],
        "name": agent["name"],
        "instructions": agent["instructions"],
        "skills": [],
        "custom_env": {str(key): str(value) for key, value in (agent["custom_env"] or {}).items()},
        "custom_args": [str(argument) for argument in agent["custom_args"] or []],
        "mcp_config": _mcp(agent["mcp_config"], task["runtime_mcp_overlay"]),
        "model": agent["model"],
        "thinking_level": agent["thinking_level"],
        "service_tier": agent["service_tier"],
        "runtime_config": agent["runtime_config"] or {},
    }


def _mcp(config: Any, overlay: Any) -> dict[str, Any] | None:
    """The agent's own MCP servers with those over them that were frozen when the task was queued; none: null."""
    if not isinstance(overlay, dict) or not overlay:
        return dict(config) if isinstance(config, dict) else None
    base = dict(config) if isinstance(config, dict) else {}
    added = overlay.get("mcpServers", overlay)
    return {**base, "mcpServers": {**(base.get("mcpServers") or {}), **added}}


def _context(task: Row, shared: Shared) -> dict[str, Any]:
    workspace = shared.workspaces.get(task["workspace_id"], {})
    issue = shared.issues.get(task["issue_id"] or "")
    user = shared.users.get(task["initiator_user_id"] or "")
    wire: dict[str, Any] = {
        "workspace_context": workspace.get("context") or "",
        "repos": _repos(workspace.get("repos")),
        "connected_apps": task["runtime_connected_apps"] or [],
        "thread_name": _thread_name(task, issue, workspace),
    }
    if user is not None:
        wire.update(
            initiator_type="member",
            initiator_id=task["initiator_user_id"],
            initiator_name=user["name"],
            initiator_email=user["email"],
        )
    return wire


def _repos(stored: Any) -> list[dict[str, str]]:
    """The workspace's repositories; a bare string is a url, an entry without one is left out."""
    found = [{"url": repo} if isinstance(repo, str) else repo for repo in stored or []]
    return [
        {name: str(repo[name]) for name in ("url", "description", "ref") if repo.get(name)}
        for repo in found
        if isinstance(repo, dict) and repo.get("url")
    ]


def _thread_name(task: Row, issue: Row | None, workspace: Row) -> str:
    if issue is not None:
        return f"{workspace.get('issue_prefix', '')}-{issue['number']}: {issue['title']}"
    return str(task["trigger_summary"] or "")


def _talk(task: Row, shared: Shared) -> tuple[dict[str, Any], list[str]]:
    """The comment part and the ids whose text it carries. A deleted trigger's place goes to the newest left."""
    ids = comment_ids(task)
    if not ids:
        return {}, []
    left = [shared.remarks[comment_id] for comment_id in ids if comment_id in shared.remarks]
    if not left:
        text = "every comment that this task answers has been deleted"
        raise Rejected(Outcome.ERROR_SOURCE, None, text)
    trigger, others = left[-1], left[:-1]
    folded = _within_budget(trigger, others)
    wire = {
        "trigger_comment_id": trigger.id,
        "trigger_thread_id": trigger.thread_id,
        "trigger_comment_content": trigger.content,
        "trigger_author_type": trigger.author_type,
        "trigger_author_name": trigger.author_name,
        "coalesced_comment_ids": [remark.id for remark in folded],
        "coalesced_comments": [vars(remark).copy() for remark in folded],
    }
    return wire, [*(remark.id for remark in folded), trigger.id]


def _within_budget(trigger: Remark, others: Sequence[Remark]) -> list[Remark]:
    left = COMMENT_BUDGET - len(trigger.content.encode())
    folded = []
    for remark in others:
        left -= len(remark.content.encode())
        if left < 0:
            break
        folded.append(remark)
    return folded


def _resume(task: Row, shared: Shared) -> dict[str, Any]:
    """What to go on with: the row's own pin or inheritance first, then the newest usable run."""
    runtime = shared.runtimes.get(task["runtime_id"], {})
    can_resume = sessions.provider_can_resume(str(runtime.get("provider") or ""), runtime.get("family"))
    earlier = task["earlier"] or []
    retired = {run["retired_session_id"] for run in earlier} | {task["retired_session_id"]}
    fresh = bool(task["force_fresh_session"])
    found = None
    work_dir = task["work_dir"]
    for run in _candidates(task, earlier):
        work_dir = work_dir or run["work_dir"]
        offer = sessions.resume(
            session_id=run["session_id"],
            work_dir=run["work_dir"],
            poison=run["poison"],
            can_resume=can_resume,
            same_runtime=run["runtime_id"] == task["runtime_id"],
            force_fresh=fresh,
            retired={session for session in retired if session},
        )
        if offer.session_id:
            found, work_dir = offer.session_id, offer.work_dir
            break
    missing = bool(earlier) and bool(earlier[0]["session_rollout_missing"])
    return {
        "prior_session_id": "" if missing else found or "",
        "prior_work_dir": work_dir or "",
        "prior_session_resume_unavailable": missing,
    }


def _candidates(task: Row, earlier: Sequence[Row]) -> list[dict[str, Any]]:
    """Runs whose session may be offered, newest first; each session is judged by its latest run alone."""
    candidates: list[dict[str, Any]] = []
    if task["session_id"] and task["work_dir"]:
        candidates.append({**task, "poison": False})
    judged: set[str] = set()
    chosen = [run for run in earlier if task["rerun_of_task_id"] in (None, run["id"])]
    for run in chosen:
        if run["failure_reason"] == "codex_resume_oversized":
            # It names no session: whatever was last active before it is too large as well.
            candidates.append({**run, "session_id": None, "poison": True})
            candidates.extend(
                {**older, "session_id": None, "poison": True} for older in chosen[chosen.index(run) + 1 :]
            )
            break
        seen = run["session_id"] in judged
        judged.add(run["session_id"])
        poison = sessions.poisoned(run["failure_reason"], run["error"])
        candidates.append({**run, "session_id": None if seen else run["session_id"], "poison": poison})
    return candidates


def _of_kind(task: Row) -> dict[str, Any]:
    """What the prompt of a task without an issue needs; it was frozen in the task's context when it was queued."""
    context = task["context"] or {}
    if task["kind"] == Kind.QUICK_CREATE:
        names = {
            "prompt": "quick_create_prompt",
            "priority": "quick_create_priority",
            "due_date": "quick_create_due_date",
            "parent_issue_id": "parent_issue_id",
        }
        wire: dict[str, Any] = {wire: str(context.get(name) or "") for name, wire in names.items()}
        wire["quick_create_attachment_ids"] = [str(i) for i in context.get("attachment_ids") or []]
        return wire
    if task["kind"] == Kind.AUTOPILOT:
        texts = ("title", "description", "source")
        wire = {f"autopilot_{name}": str(context.get(name) or "") for name in texts}
        wire["autopilot_trigger_payload"] = context.get("trigger_payload")
        return wire
    return {}
