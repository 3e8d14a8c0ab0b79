"""The commit point of a delivery, and what a start sets in motion."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from queue_app import hooks, transitions
from queue_app.models import Agent, AgentTask, TaskEvent
from queue_app.services import agent_status
from tests.support import factories
from tests.support.machine import Machine, fresh, ledger, row_text

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def machine() -> Machine:
    return Machine.make()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Every event announced after a commit: name and payload."""
    events: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(hooks, "_listeners", [lambda event, payload: events.append((event, payload))])
    return events


def start(machine: Machine, task: AgentTask, token: object = None) -> tuple[int, dict[str, Any]]:
    answer = machine.post(f"tasks/{task.pk}/start", {"claim_token": str(token)} if token else {})
    return answer.status_code, answer.json()


def deliver_again(task: AgentTask) -> AgentTask:
    """The same row with a newer delivery, as a lost answer leads to."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE agent_task_queue SET claim_token = gen_random_uuid(), deliveries = deliveries + 1 WHERE id = %s",
            [task.pk],
        )
    return fresh(task)


def test_a_start_clears_the_waiting_reason_and_the_lease_and_is_announced_once(
    machine: Machine, heard: list[tuple[str, dict[str, Any]]]
) -> None:
    """T-01, T-02, T-03, V-04: from waiting to running; the repeat is 200 and says nothing new."""
    task = machine.claimed()
    machine.post(f"tasks/{task.pk}/wait-local-directory", {"claim_token": str(task.claim_token), "reason": "busy"})
    assert fresh(task).wait_reason == "busy"
    assert start(machine, task, task.claim_token)[0] == 200
    row = fresh(task)
    assert (row.status, row.wait_reason, row.prepare_lease_expires_at) == ("running", None, None)
    assert row.started_at is not None
    after = row_text(task.pk)
    for _ in range(3):
        assert start(machine, task, task.claim_token)[0] == 200
    assert row_text(task.pk) == after
    assert [event for event, _ in heard].count("task:running") == 1
    assert [event for event, _ in heard].count("task:waiting_local_directory") == 1
    assert TaskEvent.objects.filter(task=task, verb="start").count() == 1


def test_an_agent_is_seen_working_from_claim_to_end(machine: Machine, heard: list[tuple[str, dict[str, Any]]]) -> None:
    """T-04: working while a task is dispatched or running, idle while it only waits and after the end."""
    task = machine.claimed()
    token = {"claim_token": str(task.claim_token)}
    seen = []

    def look() -> None:
        seen.append(Agent.objects.get(pk=machine.agent.pk).status)

    agent_status.refresh([machine.agent.pk])
    look()
    machine.post(f"tasks/{task.pk}/wait-local-directory", token)
    look()
    machine.post(f"tasks/{task.pk}/start", token)
    look()
    machine.post(f"tasks/{task.pk}/complete", {**token, "output": "x"})
    look()
    assert seen == ["working", "idle", "working", "idle"]
    told = [payload["status"] for event, payload in heard if event == "agent:status"]
    assert told[-3:] == ["idle", "working", "idle"]


def test_a_status_set_by_a_person_is_left_alone(machine: Machine) -> None:
    Agent.objects.filter(pk=machine.agent.pk).update(status="blocked")
    machine.claimed()
    agent_status.refresh([machine.agent.pk])
    assert Agent.objects.get(pk=machine.agent.pk).status == "blocked"


def test_escalations_of_a_task_end_when_it_starts(machine: Machine) -> None:
    """T-05: those that wait, are queued or are in preparation; one that runs goes on, and other tasks' stay."""
    machine.agent.max_concurrent_tasks = 50
    machine.agent.save()
    task = machine.claimed()
    of_this = {"escalation_for_task_id": task.pk}
    later = factories.enqueue(machine.agent, None, status="deferred", fire_at="2999-01-01T00:00:00Z", **of_this)
    running = machine.claimed(factories.enqueue(machine.agent, None, **of_this))
    transitions.start(running.pk, claim_token=running.claim_token, actor="test")
    dispatched = machine.claimed(factories.enqueue(machine.agent, None, **of_this))
    queued = factories.enqueue(machine.agent, None, **of_this)
    other = factories.enqueue(machine.agent, None, escalation_for_task_id=queued.pk)
    start(machine, task, task.claim_token)
    assert [fresh(row).status for row in (later, queued, dispatched)] == ["cancelled"] * 3
    assert fresh(running).status == "running"
    assert fresh(other).status == "queued"


def test_the_older_of_two_deliveries_is_refused_and_the_newer_runs_on(machine: Machine) -> None:
    """L-10, L-11: with tokens; the old delivery's fail, complete, progress, pin and renewal change nothing either."""
    old = machine.claimed()
    new = deliver_again(old)
    code, body = start(machine, old, old.claim_token)
    assert (code, body["code"]) == (409, "start_claim_rejected")
    assert start(machine, new, new.claim_token)[0] == 200
    before = row_text(new.pk)
    stale = {"claim_token": str(old.claim_token)}
    for path, extra in (
        ("tasks/{}/fail", {"error": f"start task failed: POST … returned 409: {body}"}),
        ("tasks/{}/complete", {"output": "mine"}),
        ("tasks/{}/progress", {"summary": "x"}),
        ("tasks/{}/session", {"session_id": "old"}),
        (f"runtimes/{machine.runtime.pk}/tasks/{{}}/prepare-lease", {}),
    ):
        answer = machine.post(path.format(new.pk), {**stale, **extra})
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_claim"), path
    assert row_text(new.pk) == before
    assert len(ledger(new.pk)) == 6


def test_the_older_of_two_deliveries_is_refused_for_daemons_without_tokens_too(machine: Machine) -> None:
    """L-10, L-11: whoever starts second is refused, and its fail, which quotes the refusal, does not end the run."""
    task = deliver_again(machine.claimed())
    assert start(machine, task)[0] == 200
    before = row_text(task.pk)
    answer = machine.post(f"tasks/{task.pk}/start", {})
    assert answer.status_code == 409
    quoted = f"start task failed: POST http://x/start returned 409: {answer.content.decode()}"
    stale = machine.post(f"tasks/{task.pk}/fail", {"error": quoted, "failure_reason": "agent_error.unknown"})
    assert stale.status_code == 409
    assert row_text(task.pk) == before
    assert ledger(task.pk) == [("start", "start_claim_rejected"), ("fail", "stale_claim")]
    # A failure of the run itself, in other words, ends it.
    assert machine.post(f"tasks/{task.pk}/fail", {"error": "the agent broke"}).status_code == 200
    assert fresh(task).status == "failed"


def test_a_repeat_without_a_token_is_believed_while_there_was_one_delivery(machine: Machine) -> None:
    task = machine.claimed()
    assert [start(machine, task)[0] for _ in range(3)] == [200, 200, 200]
    assert ledger(task.pk) == []


def test_each_renewal_sets_the_lease_to_45_seconds_from_then(machine: Machine) -> None:
    """L-03: by the database's clock."""
    task = machine.claimed()
    path = f"runtimes/{machine.runtime.pk}/tasks/{task.pk}/prepare-lease"
    for number in (1, 2):
        assert machine.post(path, {"claim_token": str(task.claim_token)}).status_code == 200
        event = TaskEvent.objects.filter(task=task, verb="renew_lease").order_by("seq").last()
        row = fresh(task)
        assert event is not None
        assert row.prepare_lease_expires_at is not None
        assert (row.prepare_lease_expires_at - event.at).total_seconds() == 45
        assert row.lease_extensions == number


def test_a_start_costs_few_statements(machine: Machine) -> None:
    """The hot verbs stay cheap: reading the row, the transition, the escalations, the agent's status."""
    task = machine.claimed()
    body = {"claim_token": str(task.claim_token)}
    machine.get("workspaces")  # the token is known from here on
    agent_status.refresh([machine.agent.pk])
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert machine.post(f"tasks/{task.pk}/start", body).status_code == 200
    statements = [query["sql"] for query in seen.captured_queries if query["sql"] not in ("BEGIN", "COMMIT")]
    assert len(statements) <= 4, "\n\n".join(s[:150] for s in statements)
