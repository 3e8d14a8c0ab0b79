"""What an ending says about where the work and the conversation are, from its wire form."""

from __future__ import annotations

from queue_app.transitions import Report
from queue_app.wire.daemon import Ending


def report_of(body: Ending) -> Report:
    """An ending's places; empty texts leave a value as it was."""
    return Report(
        session_id=body.session_id or None,
        retired_session_id=body.retired_session_id or None,
        session_rollout_missing=body.session_rollout_missing,
        work_dir=body.work_dir or None,
        durable_work_dir=body.durable_work_dir or None,
        branch_name=body.branch_name or None,
    )
