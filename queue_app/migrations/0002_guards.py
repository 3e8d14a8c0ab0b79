"""Functions, the edge trigger, append-only events, database cascades, storage settings."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from queue_app.sql.schema import install


class Migration(migrations.Migration):
    dependencies: ClassVar = [("queue_app", "0001_initial")]
    operations: ClassVar = [migrations.RunSQL(install(), migrations.RunSQL.noop)]
