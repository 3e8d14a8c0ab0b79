"""One decision at a time about what starts on an issue."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import connection


def share_issues(issue_ids: Iterable[UUID | None]) -> None:
    """Lock the issues of tasks that are about to end, in the order in which everybody locks: issues before tasks.

    Whoever changes or deletes one of them waits for this transaction or this one for them, at most the lock timeout.
    """
    ids = sorted({issue_id for issue_id in issue_ids if issue_id is not None})
    if ids:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM issue WHERE id = ANY(%s) ORDER BY id FOR KEY SHARE", [ids])


def lock_issue(issue_id: UUID | None) -> None:
    """Let one transaction at a time decide what starts on an issue. Released by its end.

    The issue's row is locked first, as those who change it do, and no task is locked before: the waits cannot cross.
    Waits at most the session's lock timeout. No-op without an issue.
    """
    if issue_id is None:
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM issue WHERE id = %s FOR KEY SHARE", [issue_id])
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('issue:' || %s, 0))", [str(issue_id)])
