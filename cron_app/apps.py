from __future__ import annotations

from django.apps import AppConfig


class CronAppConfig(AppConfig):
    name = "cron_app"

    def ready(self) -> None:
        """Let whoever runs the sweeps tick as well."""
        from cron_app.sweeps import ticking
        from queue_app.sweeps import runner

        runner.beside(ticking.cron)
