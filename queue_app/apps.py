from __future__ import annotations

from django.apps import AppConfig


class QueueAppConfig(AppConfig):
    name = "queue_app"

    def ready(self) -> None:
        """Register what ends mean and what settings must hold; nothing else imports either."""
        from queue_app import checks, effects  # noqa: F401
