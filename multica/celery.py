"""The Celery application: carries what may be slow or done again; nothing on the claim path (design D16)."""

from __future__ import annotations

import os

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "multica.settings")

app = Celery("multica")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@setup_logging.connect
def keep_our_logging(**_kwargs: object) -> None:
    """Being connected is the point: Celery then leaves the logging that Django configured alone."""
