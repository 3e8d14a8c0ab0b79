"""Comments of an issue: threads of a root and its replies, read in several shapes, written by people and agents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Count, F, Max, Q, QuerySet
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone

from queue_app import events
from queue_app.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from queue_app.models import Comment, Issue
from queue_app.services import route_comment, withdraw_comment
from queue_app.services.enqueue import Enqueued
from queue_app.services.issues import find as find_issue
from queue_app.services.route_comment import Routed
from queue_app.services.scope import Scope, may_administrate

PAGE = 1000
"""Most comments or threads in one answer; the cursor leads to older ones."""


@dataclass(frozen=True)
class Written:
    """A comment, and what became of the work that it asked for, by agent (none: it concerns no agent)."""

    comment: Comment
    runs: list[Routed]

    @property
    def run(self) -> Enqueued | None:
        """What became of the first agent that it names or is for."""
        return self.runs[0].run if self.runs else None


@dataclass(frozen=True)
class Reading:
    """Which comments to read. Every field may be left out; together they narrow."""

    since: datetime | None = None
    thread: UUID | None = None
    tail: int | None = None
    recent: int | None = None
    before: datetime | None = None
    before_id: UUID | None = None
    roots_only: bool = False
    fold: bool = False


@dataclass
class ThreadFacts:
    """What an answer says of a thread beside its root."""

    reply_count: int = 0
    last_activity_at: datetime | None = None
    folded_count: int = 0


@dataclass
class Page:
    """Comments in order of time, facts by root id, and where an older page begins (None: there is none)."""

    comments: list[Comment]
    facts: dict[UUID, ThreadFacts] = field(default_factory=dict)
    next_before: datetime | None = None
    next_before_id: UUID | None = None


# ---------------------------------------------------------------------------------------------------------- reading


def read(where: Scope, ref: str | UUID, reading: Reading) -> Page:
    """One page of an issue's comments, oldest first.

    `thread` takes any comment of a thread (`tail`: only its last replies); `recent` takes the threads that were active
    last, whole; `roots_only` takes roots alone; otherwise all comments. `since` keeps what is newer. `fold` leaves out
    the replies of resolved threads and counts them.
    """
    issue = find_issue(where, ref)
    if reading.thread is not None:
        return _finish(_thread(issue, reading), reading)
    if reading.recent is not None or reading.roots_only:
        return _finish(_threads(issue, reading), reading)
    return _finish(_flat(issue, reading), reading)


def _thread(issue: Issue, reading: Reading) -> Page:
    member = Comment.objects.filter(issue=issue, id__in=[reading.thread]).first()
    if member is None:
        raise NotFoundError("comment not found")
    root_id = member.parent_id or member.id
    root = [member] if member.id == root_id else list(Comment.objects.filter(id=root_id))
    replies = _older(Comment.objects.filter(parent_id=root_id), reading)
    limit = PAGE if reading.tail is None else reading.tail
    page = _newest(replies, limit)
    return Page(root + page.comments, {}, page.next_before, page.next_before_id)


def _flat(issue: Issue, reading: Reading) -> Page:
    rows = _older(Comment.objects.filter(issue=issue), reading)
    if reading.since is not None:
        rows = rows.filter(created_at__gt=reading.since)
    return _newest(rows, reading.tail or PAGE)


def _older(rows: QuerySet[Comment], reading: Reading) -> QuerySet[Comment]:
    if reading.before is None:
        return rows
    older = Q(created_at__lt=reading.before)
    if reading.before_id is not None:
        older |= Q(created_at=reading.before, id__lt=reading.before_id)
    return rows.filter(older)


def _newest(rows: QuerySet[Comment], limit: int) -> Page:
    found = list(rows.order_by("-created_at", "-id")[: limit + 1])
    kept = found[:limit]
    page = Page(kept[::-1])
    if len(found) > limit and kept:
        page.next_before, page.next_before_id = kept[-1].created_at, kept[-1].id
    return page


def _threads(issue: Issue, reading: Reading) -> Page:
    roots = Comment.objects.filter(issue=issue, parent=None).annotate(
        active_at=Greatest(F("created_at"), Coalesce(Max("replies__created_at"), F("created_at")))
    )
    if reading.since is not None:
        roots = roots.filter(active_at__gt=reading.since)
    if reading.before is not None:
        older = Q(active_at__lt=reading.before)
        if reading.before_id is not None:
            older |= Q(active_at=reading.before, id__lt=reading.before_id)
        roots = roots.filter(older)
    limit = min(reading.recent or PAGE, PAGE)
    found = list(roots.order_by("-active_at", "-id")[: limit + 1])
    kept = found[:limit]
    comments: list[Comment] = list(kept)
    if not reading.roots_only:
        comments += Comment.objects.filter(parent_id__in=[root.id for root in kept])
    page = Page(_in_order(comments))
    if len(found) > limit and kept:
        page.next_before, page.next_before_id = kept[-1].active_at, kept[-1].id
    return page


def _in_order(comments: Iterable[Comment]) -> list[Comment]:
    return sorted(comments, key=lambda comment: (comment.created_at, comment.id))


def _finish(page: Page, reading: Reading) -> Page:
    """Add the facts of each thread whose root is on the page, and fold resolved threads if asked."""
    roots = [comment for comment in page.comments if comment.parent_id is None]
    page.facts = facts_of(roots)
    if reading.fold:
        folded = {root.id for root in roots if root.resolved_at is not None}
        for root_id in folded:
            page.facts[root_id].folded_count = sum(c.parent_id == root_id for c in page.comments)
        page.comments = [comment for comment in page.comments if comment.parent_id not in folded]
    return page


def facts_of(roots: Sequence[Comment]) -> dict[UUID, ThreadFacts]:
    """Number of replies and last activity by root, in one statement for any number of roots."""
    facts = {root.id: ThreadFacts(last_activity_at=root.created_at) for root in roots}
    if not facts:
        return facts
    counted = (
        Comment.objects.filter(parent_id__in=list(facts))
        .values_list("parent_id")
        .annotate(Count("id"), Max("created_at"))
        .order_by()
    )
    for root_id, count, newest in counted:
        facts[root_id].reply_count, facts[root_id].last_activity_at = count, newest
    return facts


# ---------------------------------------------------------------------------------------------------------- writing


@transaction.atomic
def add(where: Scope, ref: str | UUID, *, content: str, parent_id: UUID | None = None) -> Written:
    """Add a comment and start or feed the agents that it concerns, in one transaction.

    A reply to a reply joins the thread of its root. With a task token the author is the task's agent.
    """
    issue = find_issue(where, ref)
    if not content.strip():
        raise InvalidError("content: must not be empty", field="content")
    comment = Comment.objects.create(
        workspace_id=issue.workspace_id,
        issue=issue,
        parent_id=_root_of(issue, parent_id),
        author_type=where.author_type,
        author_id=where.author_id,
        content=content,
        source_task_id=where.task_id,
    )
    comment.refresh_from_db()
    comment.issue = issue
    runs = route_comment.route(comment, where.caller)
    _tell("comment:created", comment)
    return Written(comment, runs)


@transaction.atomic
def edit(where: Scope, comment_id: UUID, *, content: str) -> Written:
    """Change the words of one's own comment, and let the new ones count instead of the old.

    What acts on the old words is stopped, running tasks too, and the new ones are routed as if they were just said.
    The same words again change nothing. Raises InvalidError, ForbiddenError, NotFoundError.
    """
    comment = find(where, comment_id, lock=True)
    if (comment.author_type, comment.author_id) != (where.author_type, where.author_id):
        raise ForbiddenError("only its author may change a comment")
    if not content.strip():
        raise InvalidError("content: must not be empty", field="content")
    if content == comment.content:
        return Written(comment, [])
    comment.content = content
    comment.save(update_fields=["content", "updated_at"])
    withdraw_comment.withdraw(comment.issue, {comment.id}, caller=where.caller, because="its comment was changed")
    runs = route_comment.route(comment, where.caller)
    _tell("comment:updated", comment)
    return Written(comment, runs)


def _root_of(issue: Issue, parent_id: UUID | None) -> UUID | None:
    if parent_id is None:
        return None
    parent = Comment.objects.filter(issue=issue, id=parent_id).first()
    if parent is None:
        raise InvalidError("parent_id: no such comment on this issue", field="parent_id")
    return parent.parent_id or parent.id


def find(where: Scope, comment_id: UUID, *, lock: bool = False) -> Comment:
    """A comment of the scope, or NotFoundError."""
    rows = Comment.objects.filter(id=comment_id, workspace_id__in=where.workspace_ids)
    if lock:
        rows = rows.select_for_update(no_key=True)
    found = rows.first()
    if found is None:
        raise NotFoundError("comment not found")
    return found


@transaction.atomic
def resolve(where: Scope, comment_id: UUID, *, resolved: bool) -> Comment:
    """Mark the comment's thread as settled, or open it again. Repeats change nothing."""
    comment = find(where, comment_id, lock=True)
    if comment.parent_id is not None:
        comment = find(where, comment.parent_id, lock=True)
    if (comment.resolved_at is not None) != resolved:
        comment.resolved_at = timezone.now() if resolved else None
        comment.save(update_fields=["resolved_at", "updated_at"])
        _tell("comment:updated", comment)
    return comment


@transaction.atomic
def delete(where: Scope, comment_id: UUID) -> None:
    """Delete a comment: its author, or an admin of the workspace.

    A root that others have answered is kept unless an admin deletes it, so nobody loses a reply to someone else's act.
    What acts on the deleted words is stopped, and what else it was for is asked for again.
    """
    comment = find(where, comment_id, lock=True)
    admin = may_administrate(where, comment.workspace_id)
    if not admin and (comment.author_type, comment.author_id) != (where.author_type, where.author_id):
        raise ForbiddenError("only its author or an admin of the workspace may delete a comment")
    if not admin and Comment.objects.filter(parent=comment).exists():
        raise ConflictError("the comment has replies; resolve the thread instead")
    _tell("comment:deleted", comment)
    gone = {comment.id, *Comment.objects.filter(parent=comment).values_list("id", flat=True)}
    withdraw_comment.withdraw(comment.issue, gone, caller=where.caller, because="its comment was deleted")
    comment.delete()


def _tell(event: str, comment: Comment) -> None:
    payload = {"comment_id": str(comment.id), "issue_id": str(comment.issue_id)}
    workspace_id = comment.workspace_id
    transaction.on_commit(lambda: events.publish(workspace_id, event, payload))
