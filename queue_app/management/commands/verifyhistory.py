"""`manage.py verifyhistory`: prove that tasks and their events tell the same story, or say where they do not."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive

from queue_app.services import verify_history


class Command(BaseCommand):
    """Read-only and batched; every batch is one statement, so it sees rows and events of the same moment."""

    help = "Recompute every task's hash chain and fold its events; print what does not fit. Status 1 on any finding."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which tasks to look at."""
        parser.add_argument("--task", type=UUID, help="only this task")
        parser.add_argument("--since", help="only tasks made at or after this time (ISO 8601 with a zone)")
        parser.add_argument("--limit", type=int, help="at most this many tasks")

    def handle(self, *_: Any, **options: Any) -> None:
        """Check and report."""
        since = _moment(options["since"])
        count = 0
        looked = 0
        for batch in verify_history.verify(task_id=options["task"], since=since, limit=options["limit"]):
            looked += batch.tasks
            count += len(batch.findings)
            for finding in batch.findings:
                self.stdout.write(str(finding))
        if options["task"] and not looked:
            raise CommandError(f"no task {options['task']}")
        self.stdout.write(f"{looked} tasks checked, {count} findings")
        if count:
            raise CommandError("history and tables disagree", returncode=1)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = parse_datetime(text)
    if moment is None or is_naive(moment):
        raise CommandError(f"--since: {text!r} is not a time with a zone, such as 2026-01-31T12:00:00Z")
    return moment
