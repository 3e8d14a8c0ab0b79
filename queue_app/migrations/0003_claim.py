"""The claim's functions."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from queue_app.sql.claim import install


class Migration(migrations.Migration):
    dependencies: ClassVar = [("queue_app", "0002_guards")]
    operations: ClassVar = [
        migrations.RunSQL(install(), "DROP FUNCTION IF EXISTS claim_tasks; DROP FUNCTION IF EXISTS claim_deliver")
    ]
