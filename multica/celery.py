"""The Celery application: carries what may be slow or done again; nothing on the claim path (design D16)."""

from __future__ import annotations

import os
import warnings

from celery import Celery
from celery.platforms import SecurityWarning
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "multica.settings")

# Tasks are JSON and nobody else writes to the broker: running as root needs no ten lines of warning.
warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("multica")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@setup_logging.connect  # type: ignore[untyped-decorator]
def keep_our_logging(**_kwargs: object) -> None:
    """Being connected is the point: Celery then leaves the logging that Django configured alone."""
