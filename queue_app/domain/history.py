"""Which columns of a task its events carry, and in what form.

An event holds the new value of every carried column that its verb wrote, so folding a task's events in order gives
the carried part of its row. `verifyhistory` compares the two; a hand edit of any column named here is found.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Form(StrEnum):
    """How a column's value stands in an event."""

    PLAIN = "plain"
    INSTANT = "instant"
    DIGEST = "digest"


CARRIED: Final[dict[str, Form]] = {
    "workspace_id": Form.PLAIN,
    "agent_id": Form.PLAIN,
    "runtime_id": Form.PLAIN,
    "issue_id": Form.PLAIN,
    "chat_session_id": Form.PLAIN,
    "autopilot_id": Form.PLAIN,
    "autopilot_run_id": Form.PLAIN,
    "kind": Form.PLAIN,
    "serial_key": Form.PLAIN,
    "status": Form.PLAIN,
    "priority": Form.PLAIN,
    "base_priority": Form.PLAIN,
    "attempt": Form.PLAIN,
    "max_attempts": Form.PLAIN,
    "created_at": Form.INSTANT,
    "fire_at": Form.INSTANT,
    "dispatched_at": Form.INSTANT,
    "started_at": Form.INSTANT,
    "completed_at": Form.INSTANT,
    "prepare_lease_expires_at": Form.INSTANT,
    "claim_token": Form.PLAIN,
    "deliveries": Form.PLAIN,
    "lease_extensions": Form.PLAIN,
    "stop_pending_since": Form.INSTANT,
    "stopped_at": Form.INSTANT,
    "wait_reason": Form.DIGEST,
    "failure_reason": Form.PLAIN,
    "not_retried_because": Form.PLAIN,
    "error": Form.DIGEST,
    "result": Form.DIGEST,
    "context": Form.DIGEST,
    "session_id": Form.PLAIN,
    "retired_session_id": Form.PLAIN,
    "work_dir": Form.DIGEST,
    "durable_work_dir": Form.DIGEST,
    "branch_name": Form.PLAIN,
    "trigger_comment_id": Form.PLAIN,
    "coalesced_comment_ids": Form.PLAIN,
    "delivered_comment_ids": Form.PLAIN,
    "parent_task_id": Form.PLAIN,
    "retry_of_task_id": Form.PLAIN,
    "rerun_of_task_id": Form.PLAIN,
    "originator_user_id": Form.PLAIN,
    "accountable_user_id": Form.PLAIN,
    "originator_source": Form.PLAIN,
    "trigger_evidence_kind": Form.PLAIN,
    "trigger_evidence_ref_id": Form.PLAIN,
    "force_fresh_session": Form.PLAIN,
    "chat_finalize_deferred_at": Form.INSTANT,
}

_EXPRESSIONS: Final[dict[Form, str]] = {
    Form.PLAIN: "{value}",
    Form.INSTANT: "task_instant({value})",
    Form.DIGEST: "task_digest({value}::text)",
}


def carried_expression(column: str, value: str) -> str:
    """The SQL that puts `value`, an SQL expression of the column's type, into an event."""
    return _EXPRESSIONS[CARRIED[column]].format(value=value)


def changes_expression(values: dict[str, str]) -> str:
    """The SQL of an event's `changes`: a jsonb object of the carried ones of `values` (column to SQL expression).

    Built in pieces, since a function takes at most 100 arguments.
    """
    parts = [f"'{column}', {carried_expression(column, sql)}" for column, sql in values.items() if column in CARRIED]
    if not parts:
        return "'{}'::jsonb"
    pieces = [parts[start : start + 40] for start in range(0, len(parts), 40)]
    return " || ".join(f"jsonb_build_object({', '.join(piece)})" for piece in pieces)
