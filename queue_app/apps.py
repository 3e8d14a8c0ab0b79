from __future__ import annotations

from django.apps import AppConfig


class QueueAppConfig(AppConfig):
    name = "queue_app"
