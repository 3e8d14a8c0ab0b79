"""`manage.py runsweeper`: the sweeps and the cron ticks, for ever or once."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from queue_app.sweeps import runner
from queue_app.sweeps.base import Sweep


class Command(BaseCommand):
    """Any number of these may run; each does what is due and none needs to know of the others."""

    help = "Run the sweeps every SWEEP_INTERVAL seconds, with cron ticks beside them. Stops on SIGTERM and SIGINT."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The three switches."""
        parser.add_argument("--once", action="store_true", help="one pass, then exit; status 1 if a sweep failed")
        parser.add_argument("--only", action="append", metavar="NAME", help="only this sweep (may be repeated)")
        parser.add_argument(
            "--dry-run", action="store_true", help="print each row, rule, threshold and margin; touch nothing"
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Run as asked."""
        try:
            sweeps = runner.chosen(options["only"])
        except KeyError as error:
            names = ", ".join(sweep.name for sweep in runner.SWEEPS)
            raise CommandError(f"no sweep {error}; there are {names}") from None
        if options["once"] or options["dry_run"]:
            self._once(sweeps, options["dry_run"])
        else:
            self._forever(sweeps)

    def _once(self, sweeps: tuple[Sweep, ...], dry_run: bool) -> None:
        failed = []
        for sweep, result in zip(sweeps, runner.run_once(sweeps, dry_run=dry_run), strict=True):
            if isinstance(result, Exception):
                failed.append(sweep.name)
                self.stderr.write(f"{sweep.name}: {type(result).__name__}: {result}")
            else:
                for line in result.lines():
                    self.stdout.write(line)
        if failed:
            raise CommandError(f"failed: {', '.join(failed)}")

    def _forever(self, sweeps: tuple[Sweep, ...]) -> None:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        self.stdout.write("sweeper: running")
        self.stdout.flush()  # into a pipe it would be seen only at the end
        runner.Loop(sweeps, stop=stop).run()
        self.stdout.write("sweeper: stopped")
