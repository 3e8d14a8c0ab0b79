"""Sums raw usage into hours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from cron_app.sql import usage

OVERLAP = timedelta(minutes=15)
"""How far before the last look to begin: a report is stamped when its transaction begins and seen when it ends, and no
door may hold a transaction for longer than this."""


def rollup(since: datetime | None, check: Callable[[], None]) -> dict[str, Any]:
    """Compute every hour anew that got a report since `since` (None: all), each in a transaction of its own.

    `check` is called between hours and may raise. Returns `rows_affected`, `hours` and `through`, the moment up to
    which everything reported is in. While another roll-up runs nothing is done and `skipped_reason` says so.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        through: datetime = cursor.fetchone()[0]
        cursor.execute(usage.TOUCHED, {"since": since and since - OVERLAP})
        buckets = [row[0] for row in cursor.fetchall()]
    rows = 0
    for bucket in buckets:
        check()
        made = _sum(bucket)
        if made is None:
            return {"rows_affected": rows, "skipped_reason": "another roll-up is running"}
        rows += made
    return {"rows_affected": rows, "hours": len(buckets), "through": through.isoformat()}


def _sum(bucket: datetime) -> int | None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(usage.TRY_LOCK)
        if not cursor.fetchone()[0]:
            return None
        cursor.execute(usage.CLEAR, {"bucket": bucket})
        cursor.execute(usage.SUM, {"bucket": bucket})
        return int(cursor.rowcount)
