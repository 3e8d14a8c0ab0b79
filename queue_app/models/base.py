"""What every table of the product shares."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models.functions import Now
from uuid_utils.compat import uuid7


def new_id() -> uuid.UUID:
    """A UUIDv7: ordered by time of creation, so the last sort key of a claim is the same on every replica."""
    return uuid7()


class Row(models.Model):
    """A table with a UUIDv7 key and the database's own time of creation."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        abstract = True
