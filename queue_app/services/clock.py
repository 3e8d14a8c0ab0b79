"""The database's clock, for services that must give an instant instead of comparing one in SQL."""

from __future__ import annotations

from datetime import datetime

from django.db import connection


def database_now() -> datetime:
    """The start of the present transaction by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        moment: datetime = cursor.fetchone()[0]
    return moment
