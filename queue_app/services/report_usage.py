"""Tokens and cost of a run. Sent before every ending, cancellation included."""

from __future__ import annotations

from uuid import UUID

import msgspec

from queue_app.auth import Caller
from queue_app.models.base import new_id
from queue_app.services import fenced_reports
from queue_app.sql.reports import WRITE_USAGE
from queue_app.wire.daemon import UsageLine


def report_usage(caller: Caller, task_id: UUID | None, *, claim_token: UUID | None, usage: list[UsageLine]) -> int:
    """Store usage by provider and model, in any state of the task; the newest report of a pair replaces the last.

    Several lines of one pair in one report are added up. Negative numbers count as 0. Returns the lines written.
    Raises StaleClaimError, TaskNotFoundError, NotFoundError.
    """
    rows: dict[tuple[str, str], dict[str, str | int | None]] = {}
    for line in usage:
        row = rows.setdefault((line.provider, line.model), {})
        for name in ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd_ticks"):
            row[name] = _sum(row.get(name), getattr(line, name))
    lines = [{"id": str(new_id()), "provider": p, "model": m, **row} for (p, m), row in sorted(rows.items())]
    body = {"usage": msgspec.json.encode(lines).decode()}
    written = fenced_reports.write(WRITE_USAGE, "usage", caller, task_id, claim_token, body, {"usage": lines})
    return int(written.made or 0)


def _sum(so_far: object, more: int | None) -> int | None:
    if more is None:
        return so_far if isinstance(so_far, int) else None
    before = so_far if isinstance(so_far, int) else 0
    return min(before + max(more, 0), 2**63 - 1)
