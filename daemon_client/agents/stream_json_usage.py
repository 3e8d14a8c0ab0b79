"""Tokens of a Claude run, counted once: by the final totals, and without what earlier runs of the conversation used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from daemon_client.agents import base

LEDGER: Final = ".multica-usage.json"
MAX_SESSIONS: Final = 50

Totals = dict[str, base.Usage]


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _entry(provider: str, model: str, numbers: list[int], ticks: int | None = None) -> base.Usage:
    fresh, output, read, written = numbers
    return base.Usage(provider, model, fresh, output, read, written, ticks)


def from_usage(provider: str, model: str, usage: base.Json) -> base.Usage:
    """An entry from a `usage` object, as messages and results carry it."""
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return _entry(provider, model, [_count(usage.get(name)) for name in names])


def from_model_usage(provider: str, models: Mapping[str, Any]) -> Totals:
    """Entries from a result's `modelUsage`, by model."""
    return {model: _from_one(provider, model, usage) for model, usage in models.items() if isinstance(usage, dict)}


def _from_one(provider: str, model: str, usage: base.Json) -> base.Usage:
    names = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
    numbers = [_count(usage.get(name)) for name in names]
    cost = usage.get("costUSD")
    ticks = round(cost * base.USD_TICKS) if isinstance(cost, int | float) and not isinstance(cost, bool) else None
    return _entry(provider, model, numbers, ticks)


def figures(usage: base.Usage) -> tuple[int, int, int, int]:
    return usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens


def add(*parts: Iterable[base.Usage]) -> tuple[base.Usage, ...]:
    """All entries together, one a model; costs are added where they are known. Empty entries are left out."""
    total: dict[tuple[str, str], base.Usage] = {}
    for usage in (entry for part in parts for entry in part):
        key = (usage.provider, usage.model)
        before = total.get(key)
        total[key] = usage if before is None else _combine(before, usage, 1)
    return tuple(entry for entry in total.values() if not entry.is_empty)


def _combine(one: base.Usage, other: base.Usage, sign: int) -> base.Usage:
    numbers = [mine + sign * theirs for mine, theirs in zip(figures(one), figures(other), strict=True)]
    costs = one.cost_usd_ticks, other.cost_usd_ticks
    ticks = None if costs[0] is None else costs[0] + sign * (costs[1] or 0)
    return _entry(one.provider, one.model, numbers, ticks)


def of_this_run(
    totals: Totals, own: base.Usage, *, resumed: bool, before: Mapping[str, Any] | None
) -> tuple[base.Usage, ...]:
    """What this run alone used.

    `totals` is the result's count by model. In a resumed conversation the CLI counts on from where the earlier run
    ended, while `own` (the result's `usage`, main model only) begins at zero. `before` is the earlier `modelUsage`.
    """
    summed = tuple(map(sum, zip(*map(figures, totals.values()), strict=True))) if totals else ()
    if not totals or (resumed and summed != figures(own) and before is None):
        return add([own])
    if not resumed or summed == figures(own):
        return add(totals.values())
    earlier = from_model_usage(own.provider, before or {})
    rest = [_combine(now, earlier[model], -1) if model in earlier else now for model, now in totals.items()]
    if any(number < 0 for usage in rest for number in figures(usage)):
        return add([own])
    return add(rest)


class Ledger:
    """The final counts of conversations in a provider home, so that the next run can subtract them."""

    def __init__(self, home: str) -> None:
        self._path = Path(home) / LEDGER if home else None

    def _read(self) -> base.Json:
        try:
            value = json.loads(self._path.read_text("utf-8")) if self._path else {}
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def _write(self, value: base.Json) -> None:
        if self._path is not None and self._path.parent.is_dir():
            self._path.write_text(json.dumps(dict(list(value.items())[-MAX_SESSIONS:])), "utf-8")

    def take(self, session_id: str) -> base.Json | None:
        """The counts of a conversation, and forget them: if this run is killed nobody knows where the count stands."""
        known = self._read()
        taken = known.pop(session_id, None)
        if taken is not None:
            self._write(known)
        return taken if isinstance(taken, dict) else None

    def keep(self, session_id: str, model_usage: base.Json) -> None:
        if session_id and model_usage:
            self._write({**self._read(), session_id: model_usage})
