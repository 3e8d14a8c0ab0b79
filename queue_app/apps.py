from __future__ import annotations

from django.apps import AppConfig


class QueueAppConfig(AppConfig):
    name = "queue_app"

    def ready(self) -> None:
        """Register what ends mean; nothing else imports the effects."""
        from queue_app import effects  # noqa: F401
