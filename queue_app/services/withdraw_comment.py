"""Words that were changed or deleted: what acts on them is stopped, and what else it was for is asked for again."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING
from uuid import UUID

from django.db.models import Q

from queue_app import transitions
from queue_app.domain.states import OPEN, Kind
from queue_app.models import Agent, AgentTask, Comment, Issue
from queue_app.services import enqueue, promote, settle
from queue_app.services.enqueue import Attribution, Enqueued, Wish
from queue_app.services.issue_lock import lock_issue

if TYPE_CHECKING:
    from queue_app.auth import Caller


def withdraw(issue: Issue, comment_ids: Collection[UUID], *, caller: Caller, because: str) -> list[AgentTask]:
    """Cancel every open task that carries one of these comments, and ask again for what it carries beside them.

    Other comments, an assignment and its note go into a new task of the same agent with the authority that they had.
    Returns the cancelled rows. The caller holds a transaction and no lock on a task.
    """
    lock_issue(issue.id)
    ids = list(comment_ids)
    carries = Q(trigger_comment_id__in=ids) | Q(coalesced_comment_ids__overlap=ids)
    found = AgentTask.objects.filter(carries, issue_id=issue.id, status__in=sorted(OPEN)).order_by("id")
    rows = transitions.cancel(list(found.values_list("id", flat=True)), actor=caller.actor, reason=because)
    settle.ended(rows, "cancel")
    for row in sorted(rows, key=lambda row: (row.created_at, row.id)):
        _ask_again(issue, row, set(ids))
    promote.followers(rows)
    return rows


def _ask_again(issue: Issue, row: AgentTask, gone: set[UUID]) -> Enqueued | None:
    planned = {row.trigger_comment_id, *row.coalesced_comment_ids} - {None} - gone
    left = list(Comment.objects.filter(id__in=planned, issue_id=issue.id).order_by("created_at", "id"))
    agent = Agent.objects.filter(id=row.agent_id).first()
    if agent is None or not (left or row.handoff_note or row.kind == Kind.ISSUE):
        return None
    return enqueue.fulfil(
        Wish(
            issue=issue,
            agent=agent,
            actor="server",
            attribution=Attribution(
                row.originator_user_id,
                row.accountable_user_id,
                row.originator_source or "owner_fallback",
                row.delegated_from_task_id,
            ),
            evidence_kind="comment" if left else row.trigger_evidence_kind or "issue_assignment",
            evidence_ref=left[-1].id if left else row.trigger_evidence_ref_id,
            comment=left[-1] if left else None,
            earlier_comments=tuple(comment.id for comment in left[:-1]),
            handoff_note=row.handoff_note,
            context={} if left else row.context,
        )
    )
