"""`manage.py cron list` and `manage.py cron run NAME`: what there is, and one plan by hand."""

from __future__ import annotations

import threading
from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive

from cron_app import selectors
from cron_app.domain.jobspec import JobSpec, Scope
from cron_app.jobs import JOBS
from cron_app.services import by_hand


class Command(BaseCommand):
    """A run by hand takes the plan's lease like any other: what runs or succeeded elsewhere is refused."""

    help = "List the periodic jobs, or run one plan of a job now."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The two verbs."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("list", help="every job with its cadence and its newest execution")
        run = verbs.add_parser("run", help="run one plan; status 1 unless it succeeds")
        run.add_argument("name", help="the job")
        run.add_argument("--scope", default="global:global", metavar="KIND:ID")
        run.add_argument("--plan", metavar="TIME", help="the plan, ISO 8601 with a zone; by default the one due now")

    def handle(self, *_: Any, **options: Any) -> None:
        """Do what was asked."""
        if options["verb"] == "list":
            self._list()
        else:
            self._run(options["name"], options["scope"], options["plan"])

    def _list(self) -> None:
        for job in JOBS:
            self.stdout.write(f"{job.name}  every {job.cadence or 'its own plans'}  {job.catch_up}")
            for scope in job.scopes():
                last = selectors.newest(job.name, scope)
                told = (
                    f"{last.plan_time:%Y-%m-%d %H:%M:%S}Z {last.status} attempt {last.attempt}" if last else "never ran"
                )
                self.stdout.write(f"  {scope.kind}:{scope.id}  {told}")

    def _run(self, name: str, scope_text: str, plan_text: str | None) -> None:
        job = self._job(name)
        kind, _, ident = scope_text.partition(":")
        ended = by_hand.run(job, Scope(kind, ident), _moment(plan_text), threading.Event())
        if ended is None:
            raise CommandError(f"{name}: this plan is running or done elsewhere, or not yet due again")
        self.stdout.write(f"{name} {ended.plan_time:%Y-%m-%d %H:%M:%S}Z: {ended.status} {ended.result}")
        if ended.status != "SUCCESS":
            raise CommandError(f"{ended.error_code}: {ended.error_msg}")

    @staticmethod
    def _job(name: str) -> JobSpec:
        for job in JOBS:
            if job.name == name:
                return job
        raise CommandError(f"no job {name!r}; there are {', '.join(job.name for job in JOBS)}")


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = parse_datetime(text)
    if moment is None or is_naive(moment):
        raise CommandError(f"--plan: {text!r} is not a time with a zone, such as 2026-01-31T12:00:00Z")
    return moment
