"""A task with an originator names who answers for it; the first form of the check let a missing one pass."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("queue_app", "0003_claim")]
    operations: ClassVar = [
        migrations.RemoveConstraint(model_name="agenttask", name="task_accountable_is_originator"),
        migrations.AddConstraint(
            model_name="agenttask",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("originator_user_id__isnull", True),
                    models.Q(
                        ("accountable_user_id", models.F("originator_user_id")),
                        ("accountable_user_id__isnull", False),
                    ),
                    _connector="OR",
                ),
                name="task_accountable_is_originator",
            ),
        ),
    ]
