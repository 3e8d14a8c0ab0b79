"""Which agents a comment concerns, and the work that it starts or feeds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import transaction

from queue_app import events, transitions
from queue_app.conf import conf
from queue_app.domain.queueing import mentions
from queue_app.domain.states import OPEN, Status
from queue_app.models import Agent, AgentTask, Comment, Squad
from queue_app.services import enqueue, squads
from queue_app.services.clock import database_now
from queue_app.services.enqueue import BLOCKED, Enqueued, Wish

if TYPE_CHECKING:
    from queue_app.auth import Caller

MENTION, THREAD, ASSIGNEE = "mention", "thread", "assignee"
MOST_TARGETS = 10
"""Agents that one comment may start: a text that names everybody is a mistake or an attack."""


@dataclass(frozen=True)
class Target:
    """An agent that a comment is for, and why."""

    agent: Agent
    why: str


@dataclass(frozen=True)
class Routed:
    """What became of a comment for one agent."""

    target: Target
    run: Enqueued


def targets(comment: Comment) -> list[Target]:
    """The agents that a comment is for, in the order in which it names them; [] if it concerns none.

    Agents that it names (`@name`; a squad's name means its leader) come first and alone. Without a name, a person's
    reply in a thread that an agent began is for that agent, and any other comment of a person for the issue's assignee.
    Agents are heard only when they name somebody: two of them cannot keep each other busy by talking. In the backlog
    only a name starts anything.
    """
    if comment.type != "comment":
        return []
    named = _named(comment)
    if named:
        return [Target(agent, MENTION) for agent in named]
    if comment.author_type != "member" or comment.issue.status == "backlog":
        return []
    beginner = _beginner(comment)
    if beginner is not None:
        return [Target(beginner, THREAD)]
    assignee = squads.agent_of(comment.issue)
    return [Target(assignee, ASSIGNEE)] if assignee is not None else []


def route(comment: Comment, caller: Caller | str) -> list[Routed]:
    """Start or feed every agent that a comment is for; one outcome each, in one transaction.

    An agent's comment, and whatever its task writes, never starts that agent. When a person's reply goes to the agent
    of its thread and the issue is another's, that other one gets a deferred task: it runs only if the first has not
    started by then.
    """
    author = caller.agent_id if not isinstance(caller, str) and caller.kind == "task" else None
    routed = []
    with transaction.atomic():
        for target in targets(comment):
            if target.agent.id in (author, comment.author_id):
                routed.append(Routed(target, Enqueued(BLOCKED, reason="self_trigger_suppressed")))
                continue
            run = enqueue.enqueue_for_issue(
                comment.issue,
                target.agent,
                caller_or_actor=caller,
                trigger_comment=comment,
                evidence_kind="comment",
                evidence_ref=comment.id,
            )
            routed.append(Routed(target, run))
            if target.why == THREAD and run.task is not None:
                _escalate(comment, run.task, caller)
    return routed


def on_comment(comment: Comment, caller: Caller | str) -> Enqueued | None:
    """`route`, and what became of the first agent; None if the comment concerns none."""
    routed = route(comment, caller)
    return routed[0].run if routed else None


def _named(comment: Comment) -> list[Agent]:
    if "@" not in comment.content:
        return []
    here = {"workspace_id": comment.workspace_id, "archived_at": None}
    squads_here = Squad.objects.filter(**here, leader__archived_at=None).select_related("leader")
    named = [(squad.name, squad.leader) for squad in squads_here]
    named += [(agent.name, agent) for agent in Agent.objects.filter(**here)]
    found: dict[int, Agent] = {}
    # Of two names that begin at one place the longer is meant: `@Ann Lee` does not call Ann. An agent goes before a
    # squad of its name.
    for name, agent in sorted(named, key=lambda pair: len(pair[0])):
        place = mentions(comment.content, name)
        if place is not None:
            found[place] = agent
    return list(dict.fromkeys(found[place] for place in sorted(found)))[:MOST_TARGETS]


def _beginner(comment: Comment) -> Agent | None:
    root = comment.parent
    if root is None or root.author_type != "agent" or root.author_id is None:
        return None
    return Agent.objects.filter(id=root.author_id, workspace_id=comment.workspace_id, archived_at=None).first()


def _escalate(comment: Comment, primary: AgentTask, caller: Caller | str) -> None:
    """Let the assignee step in if the agent of the thread does not begin in time; one wait for each primary."""
    assignee = squads.agent_of(comment.issue)
    if conf.COMMENT_ESCALATION <= 0 or assignee is None or assignee.id == primary.agent_id:
        return
    waiting = AgentTask.objects.filter(escalation_for_task_id=primary.id, status__in=sorted(OPEN))
    if primary.started_at is not None or waiting.exists():
        return
    wish = Wish(
        issue=comment.issue,
        agent=assignee,
        actor=caller if isinstance(caller, str) else caller.actor,
        attribution=enqueue.attribute(caller, assignee),
        evidence_kind="comment",
        evidence_ref=comment.id,
        comment=comment,
        squad_id=squads.led_by(comment.issue, assignee),
    )
    if enqueue.blocked_reason(assignee, comment.workspace_id, wish.attribution) is not None:
        return
    due = database_now() + timedelta(seconds=conf.COMMENT_ESCALATION)
    values = enqueue.values_of(wish, status=Status.DEFERRED, fire_at=due, escalation_for_task_id=primary.id)
    events.announce("defer", transitions.enqueue([values], actor=wish.actor, reason="escalation"), wakes=False)


def concerns(comment: Comment, agent_id: UUID) -> bool:
    """Whether a comment is for this agent as things are now."""
    return any(target.agent.id == agent_id for target in targets(comment))
