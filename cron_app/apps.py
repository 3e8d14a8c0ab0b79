from __future__ import annotations

from django.apps import AppConfig


class CronAppConfig(AppConfig):
    name = "cron_app"
