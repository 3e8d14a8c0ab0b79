"""One sentence becomes an issue: an agent is asked to write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from queue_app import events, transitions
from queue_app.domain.queueing import QUICK_CREATE_PRIORITY, serial_key, summary
from queue_app.domain.states import Kind
from queue_app.errors import InvalidError
from queue_app.models import AgentTask, Issue
from queue_app.services import connected_apps, enqueue
from queue_app.services.scope import Scope, find_agent, one_workspace, require_person

EVIDENCE = "quick_create"


@transaction.atomic
def quick_create(where: Scope, values: Mapping[str, Any]) -> AgentTask:
    """Make the task that turns `prompt` into an issue; an agent writes one at a time, in the order of asking.

    `values` holds `agent_id`, `prompt` and, for the issue, `priority`, `due_date`, `parent_issue_id`. The person who
    asks is told of the end in their inbox. Only people may ask. Raises NotFoundError, ForbiddenError and InvalidError
    with the field, or with the reason code when the agent cannot take work.
    """
    require_person(where)
    agent = find_agent(where, values["agent_id"])
    workspace_id = one_workspace(where, values.get("workspace_id") or agent.workspace_id)
    attribution = enqueue.attribute(where.caller, agent)
    reason = enqueue.blocked_reason(agent, workspace_id, attribution)
    if reason is not None:
        raise InvalidError(f"agent_id: this agent cannot take work: {reason}", field="agent_id", code=reason)
    parent = values.get("parent_issue_id")
    if parent is not None and not Issue.objects.filter(id=parent, workspace_id=workspace_id).exists():
        raise InvalidError("parent_issue_id: no such issue", field="parent_issue_id")
    context = {"prompt": values["prompt"], "requester_id": str(where.caller.user.id)}
    for name in ("priority", "due_date", "parent_issue_id"):
        if values.get(name) is not None:
            context[name] = str(values[name])
    enqueue.check_context(Kind.QUICK_CREATE, context)
    row = {
        "workspace_id": workspace_id,
        "agent_id": agent.id,
        "runtime_id": agent.runtime_id,
        "kind": Kind.QUICK_CREATE,
        "serial_key": serial_key(Kind.QUICK_CREATE),
        "priority": QUICK_CREATE_PRIORITY,
        "context": context,
        "trigger_summary": summary(values["prompt"]),
        "initiator_user_id": where.caller.user.id,
        "trigger_evidence_kind": EVIDENCE,
        "trigger_evidence_ref_id": where.caller.user.id,
        **enqueue.people(attribution),
        **connected_apps.snapshot(workspace_id),
    }
    made = transitions.enqueue([row], actor=where.caller.actor)
    if not made:
        raise InvalidError("agent_id: this agent or its runtime is gone", field="agent_id", code="target_unavailable")
    events.announce("enqueue", made)
    return made[0]
