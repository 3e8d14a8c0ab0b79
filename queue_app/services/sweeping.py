"""Failing what a rule holds for, in bounded batches.

The look takes no lock. The act locks the issues first, as everybody does, leaves out those that someone is changing
just now, and lets the transition test the rule again on the locked rows; so two sweepers and a claim may meet at will.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from django.db import connection, transaction

from queue_app.models import AgentTask
from queue_app.services import promote, settle
from queue_app.services.rules import BATCH, Due, Rule, look


def fail_due(
    rule: Rule,
    transition: Callable[..., list[AgentTask]],
    verb: str,
    error: str,
    *,
    now: datetime | None = None,
) -> int:
    """Fail every row that the rule holds for and settle what follows; the number of rows failed."""
    done = 0
    due = look(rule, now=now)
    while due:
        with transaction.atomic():
            ids = undisputed(due)
            rows = transition(task_ids=ids, error=error, actor=f"sweep:{rule.name}", limit=len(ids) or 1, now=now)
            settle.failures(rows, verb, now=now)
            promote.followers(rows, now)
        done += len(rows)
        due = look(rule, now=now, after=due[-1].id) if len(due) == BATCH else []
    return done


def undisputed(due: Sequence[Due]) -> list[UUID]:
    """Those rows whose issue, if any, could be locked at once; the others are left to the next pass."""
    issues = sorted({row.issue_id for row in due if row.issue_id is not None})
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM issue WHERE id = ANY(%s) ORDER BY id FOR KEY SHARE SKIP LOCKED", [issues])
        locked = {row[0] for row in cursor.fetchall()}
    return [row.id for row in due if row.issue_id is None or row.issue_id in locked]
