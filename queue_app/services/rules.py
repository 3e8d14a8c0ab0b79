"""A sweep's rule over tasks, as data: looked at without touching anything, and told to people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from queue_app import transitions
from queue_app.sql.statements import NOW

BATCH = 500


@dataclass(frozen=True)
class Rule:
    """A condition over tasks `q` as SQL, and how it is told: name, text, since when it counts, its threshold (s)."""

    name: str
    where: str
    text: str
    since: str
    threshold: str
    joins: str = ""


@dataclass(frozen=True)
class Due:
    """One row that a sweep would act on: under which rule, since when, after which threshold and how far beyond it."""

    id: UUID
    what: str
    rule: str
    since: datetime
    threshold: float
    margin: float
    issue_id: UUID | None = None

    def line(self) -> str:
        """For people."""
        return (
            f"{self.id}  {self.what:<24} {self.rule}  since {self.since:%Y-%m-%d %H:%M:%S}Z  "
            f"threshold {self.threshold:g} s  over by {self.margin:.1f} s"
        )


def look(
    rule: Rule, *, now: datetime | None = None, after: UUID | None = None, limit: int = BATCH, **params: Any
) -> list[Due]:
    """The rows that a rule holds for, by id, without touching them."""
    sql = f"""
SELECT d.id, d.status, d.text, d.since, d.threshold, extract(epoch FROM {NOW} - d.since) - d.threshold, d.issue_id
  FROM (SELECT q.id, q.status, q.issue_id, ({rule.text}) AS text, ({rule.since}) AS since,
               ({rule.threshold})::float8 AS threshold
          FROM agent_task_queue q {rule.joins}
         WHERE ({rule.where}) AND (%(after)s::uuid IS NULL OR q.id > %(after)s::uuid)
         ORDER BY q.id LIMIT %(limit)s) d
"""
    values = {**transitions.window_params(), "now": now, "after": after, "limit": limit, **params}
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return [Due(row[0], row[1], row[2], row[3], float(row[4]), float(row[5]), row[6]) for row in cursor.fetchall()]
