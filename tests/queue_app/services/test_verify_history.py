"""The auditor: silent about lawful histories, loud about every edit."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from queue_app import transitions
from queue_app.domain.history import CARRIED
from queue_app.models import AgentTask
from queue_app.services import verify_history
from queue_app.services.verify_history import Finding
from queue_app.sweeps import runner
from queue_app.transitions import Report
from tests.queue_app.test_transitions import ROWS
from tests.support import lifecycle
from tests.support.lifecycle import DAEMON, Site

pytestmark = pytest.mark.django_db


def findings() -> list[Finding]:
    return [finding for batch in verify_history.verify() for finding in batch.findings]


def by_hand(statement: str, *values: Any) -> None:
    """An edit by somebody who can turn every trigger off."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement, values)
        assert cursor.rowcount > 0
        cursor.execute("SET LOCAL session_replication_role = origin")


def told_task() -> AgentTask:
    """A task that has been through much, with something in most columns."""
    site = Site()
    task = lifecycle.dispatch(site.queued(context={"head": "x"}, coalesced_comment_ids=[site.owner.id]))
    assert task.claim_token is not None
    transitions.record_delivery(task.id, claim_token=task.claim_token, comment_ids=[site.owner.id])
    task = lifecycle.start(lifecycle.park(lifecycle.renew(task)))
    transitions.pin_session(task.id, claim_token=task.claim_token, session_id="s", work_dir="/w", actor=DAEMON)
    row = transitions.complete(
        task.id, claim_token=task.claim_token, result={"output": "x"}, report=Report(branch_name="b"), actor=DAEMON
    )
    assert row is not None
    return row


def test_lawful_histories_give_nothing() -> None:
    """D11: all statuses, all sweeps, retries and reruns."""
    for make in ROWS.values():
        make(Site())
    told_task()
    runner.run_once(now=timezone.now() + timedelta(hours=30))
    assert findings() == []


_OTHER = {"uuid": "gen_random_uuid()", "jsonb": "'{\"hand\": 1}'::jsonb", "_uuid": "ARRAY[gen_random_uuid()]"}
_BY_TYPE = {
    "timestamptz": "coalesce({column}, now()) + interval '1 microsecond'",
    "int2": "coalesce({column}, 0) + 1",
    "int4": "coalesce({column}, 0) + 1",
    "bool": "NOT coalesce({column}, false)",
    "text": "coalesce({column}, '') || 'x'",
    "varchar": "'hand'",
}


def without_checks(column: str) -> str:
    """Take the CHECKs of the queue away, for the rest of the transaction; the type of a column."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = 'agent_task_queue'::regclass AND contype = 'c'"
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f"ALTER TABLE agent_task_queue DROP CONSTRAINT {name}")
        cursor.execute(
            "SELECT udt_name FROM information_schema.columns"
            " WHERE table_name = 'agent_task_queue' AND column_name = %s",
            [column],
        )
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize("column", sorted(CARRIED))
def test_a_hand_edit_of_any_carried_column_is_found(column: str) -> None:
    """D11, A-07: whatever is changed, by however little, is named."""
    task = told_task()
    kind = without_checks(column)
    value = _OTHER.get(kind) or _BY_TYPE[kind].format(column=column)
    by_hand(f"UPDATE agent_task_queue SET {column} = {value} WHERE id = %s", task.id)
    (finding,) = findings()
    assert (finding.task_id, finding.check) == (task.id, "row")
    assert finding.detail.startswith(f"{column} is ")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("verb", "'cancel'"),
        ("from_status", "'running'"),
        ("to_status", "'failed'"),
        ("reason", "'because'"),
        ("attempt", "9"),
        ("claim_token", "gen_random_uuid()"),
        ("actor", "'user:nobody'"),
        ("at", "at + interval '1 microsecond'"),
        ("changes", "changes || '{\"priority\": 4}'"),
        ("hash", "sha256('x')"),
    ],
)
def test_an_edited_event_is_found(column: str, value: str) -> None:
    """D11: any part of an event, in the middle of a history."""
    task = told_task()
    by_hand(f"UPDATE task_event SET {column} = {value} WHERE task_id = %s AND seq = 3", task.id)
    assert "hash" in {finding.check for finding in findings()}


@pytest.mark.parametrize("seq", [1, 3, 8])
def test_a_removed_event_is_found(seq: int) -> None:
    """D11: the first, one in the middle, the last."""
    task = told_task()
    assert task.event_seq == 8
    by_hand("DELETE FROM task_event WHERE task_id = %s AND seq = %s", task.id, seq)
    assert findings()


def test_an_added_event_a_forged_chain_and_a_lost_history_are_found() -> None:
    """D11: a stranger's event, a chain that was computed anew, and a task without any."""
    added, forged, lost = told_task(), told_task(), told_task()
    by_hand(
        "INSERT INTO task_event (task_id, seq, verb, from_status, to_status, attempt, actor, at, changes, hash) "
        "SELECT task_id, 9, verb, from_status, to_status, attempt, actor, at, changes, hash FROM task_event "
        "WHERE task_id = %s AND seq = 8",
        added.id,
    )
    by_hand(
        "UPDATE task_event e SET actor = 'forger', hash = task_event_hash((SELECT hash FROM task_event p "
        "WHERE p.task_id = e.task_id AND p.seq = 7), task_id, seq, verb, from_status, to_status, reason, attempt, "
        "claim_token, 'forger', at, changes) WHERE task_id = %s AND seq = 8",
        forged.id,
    )
    by_hand("DELETE FROM task_event WHERE task_id = %s", lost.id)
    found = {(finding.task_id, finding.check) for finding in findings()}
    assert {(added.id, "last event"), (forged.id, "last event"), (lost.id, "events")} <= found


def test_batches_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task is looked at once, however the batches fall."""
    monkeypatch.setattr(verify_history, "BATCH", 2)
    site = Site()
    for _ in range(5):
        site.queued(issue=site.more_issue())
    assert [batch.tasks for batch in verify_history.verify()] == [2, 2, 1]
    assert [batch.tasks for batch in verify_history.verify(limit=3)] == [2, 1]
    assert sum(batch.tasks for batch in verify_history.verify(since=timezone.now() + timedelta(hours=1))) == 0


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("verifyhistory", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_tells_and_fails() -> None:
    """D11: exit status 1 on any finding, the task and the column in words."""
    task = told_task()
    assert run() == "1 tasks checked, 0 findings\n"
    by_hand("UPDATE agent_task_queue SET priority = 3 WHERE id = %s", task.id)
    with pytest.raises(CommandError) as failure:
        run("--task", str(task.id))
    assert failure.value.returncode == 1
    with pytest.raises(CommandError, match="no task"):
        run("--task", str(AgentTask().id))
    with pytest.raises(CommandError, match="not a time with a zone"):
        run("--since", "yesterday")
