"""A person's inbox: their own items, in the workspaces that they are in."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Coalesce, Now

from queue_app.errors import NotFoundError
from queue_app.models import InboxItem
from queue_app.services.scope import Scope, require_person

PAGE = 200


def listing(where: Scope, *, unread: bool = False) -> list[InboxItem]:
    """The newest items, at most 200; `unread` leaves out those that were read."""
    rows = _own(where)
    if unread:
        rows = rows.filter(read_at=None)
    return list(rows.select_related("issue__workspace").order_by("-created_at", "-id")[:PAGE])


def mark_read(where: Scope, item_id: UUID) -> InboxItem:
    """Mark an item as read; the first time stays. Raises NotFoundError for anyone else's."""
    rows = _own(where).filter(id=item_id)
    if not rows.update(read_at=Coalesce("read_at", Now())):
        raise NotFoundError("inbox item not found")
    return rows.select_related("issue__workspace").get()


def _own(where: Scope) -> QuerySet[InboxItem]:
    require_person(where)
    return InboxItem.objects.filter(user_id=where.caller.user.id, workspace_id__in=where.workspace_ids)
