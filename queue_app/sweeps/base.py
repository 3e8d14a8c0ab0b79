"""What a sweep is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from queue_app.services.rules import Due


@dataclass(frozen=True)
class Swept:
    """What one pass did (`acted` rows), or in a dry run what it would do (`due`)."""

    name: str
    acted: int = 0
    due: tuple[Due, ...] = ()
    dry_run: bool = False

    def lines(self) -> list[str]:
        """For people: the rows of a dry run, or one line of what was done."""
        if self.dry_run:
            return [f"{self.name}: {len(self.due)} due", *(f"  {row.line()}" for row in self.due)]
        return [f"{self.name}: {self.acted}"]


def no_settling() -> float:
    """The default: a sweep may act at once after a time in which nothing could be heard."""
    return 0.0


@dataclass(frozen=True)
class Sweep:
    """A named rule with its two uses, look and act.

    `settling` gives the seconds for which a loop that could not look for a while (start, outage of the database) must
    wait before it believes that silence is a machine's own.
    """

    name: str
    due: Callable[[datetime | None], list[Due]]
    act: Callable[[datetime | None], int]
    settling: Callable[[], float] = field(default=no_settling)

    def run_once(self, now: datetime | None = None, dry_run: bool = False) -> Swept:
        """One pass. `now` replaces the database's clock; a dry run touches nothing."""
        if dry_run:
            return Swept(self.name, due=tuple(self.due(now)), dry_run=True)
        return Swept(self.name, acted=self.act(now))
