"""What was said during a run and did not reach it: one more task, so that no words are lost."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Q

from queue_app.domain.states import OPEN
from queue_app.models import Agent, AgentTask, Comment
from queue_app.services import enqueue, route_comment
from queue_app.services.enqueue import Attribution, Enqueued, Wish

MOST_PLANS = 3
"""How often one comment may be planned for one agent: a delivery that never confirms it must not spin."""


def after(task: AgentTask) -> Enqueued | None:
    """Start at most one follow-up of a completed task for comments that it did not get; None if there are none.

    Looked at are the comments planned for the task and people's comments since it was made, less those that its
    deliveries carried, those that another task of the pair has and those that are, as things are now, not for this
    agent. The caller holds the issue's lock.
    """
    issue = task.issue
    if issue is None:
        return None
    missed = _missed(task, issue.id)
    agent = Agent.objects.filter(id=task.agent_id).first()
    if not missed or agent is None:
        return None
    last = missed[-1]
    person = last.author_id if last.author_type == "member" else None
    attribution = (
        Attribution(person, person, "comment_source")
        if person
        else Attribution(task.originator_user_id, task.accountable_user_id, "delegation", task.id)
    )
    return enqueue.fulfil(
        Wish(
            issue=issue,
            agent=agent,
            actor="server",
            attribution=attribution,
            evidence_kind="comment",
            evidence_ref=last.id,
            comment=last,
            earlier_comments=tuple(comment.id for comment in missed[:-1]),
        )
    )


def _missed(task: AgentTask, issue_id: UUID) -> list[Comment]:
    planned = {task.trigger_comment_id, *task.coalesced_comment_ids} - {None}
    # An answer with a plan always names at least its trigger: no receipt means a delivery from before receipts.
    got = set(task.delivered_comment_ids) or planned
    since = Q(created_at__gt=task.created_at, author_type="member", type="comment")
    comments = Comment.objects.filter(since | Q(id__in=planned), issue_id=issue_id).exclude(id__in=got)
    ordered = comments.select_related("issue", "parent").order_by("created_at", "id")
    found = [comment for comment in ordered if route_comment.concerns(comment, task.agent_id)]
    if not found:
        return []
    plans = _plans_elsewhere(task, issue_id)
    return [comment for comment in found if _is_open(plans.get(comment.id))]


def _is_open(plans: tuple[int, bool] | None) -> bool:
    return plans is None or (not plans[1] and plans[0] < MOST_PLANS)


def _plans_elsewhere(task: AgentTask, issue_id: UUID) -> dict[UUID, tuple[int, bool]]:
    """For each comment that other tasks of the pair plan: how many do, and whether one is open or newer than this."""
    plans: dict[UUID, tuple[int, bool]] = {}
    others = AgentTask.objects.filter(issue_id=issue_id, agent_id=task.agent_id).exclude(id=task.id)
    for other in others.only("status", "created_at", "trigger_comment_id", "coalesced_comment_ids"):
        covers = other.status in OPEN or other.created_at > task.created_at
        for comment_id in {other.trigger_comment_id, *other.coalesced_comment_ids} - {None}:
            count, covered = plans.get(comment_id, (0, False))
            plans[comment_id] = (count + 1, covered or covers)
    return plans
