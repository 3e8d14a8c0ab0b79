"""The state machine as daemons meet it: every operation in every state, with the right token, an old one, and none.

Expectations come from `domain.states.EDGES`: an operation moves the row exactly where its verb may, and everywhere else
the row is the same to the last byte.
"""

from __future__ import annotations

from typing import Any

import pytest

from queue_app.domain.states import EDGES, TERMINAL, WAITING, Status
from queue_app.models import AgentTask, TaskMessage, TaskProgress, TaskUsage
from tests.support.machine import Machine, fresh, ledger, row_text, stranger_token

pytestmark = pytest.mark.django_db(transaction=True)

OPERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "renew_lease": ("runtimes/{runtime}/tasks/{task}/prepare-lease", {}),
    "park": ("tasks/{task}/wait-local-directory", {"reason": "busy"}),
    "start": ("tasks/{task}/start", {}),
    "pin_session": ("tasks/{task}/session", {"session_id": "s-1"}),
    "complete": ("tasks/{task}/complete", {"output": "done"}),
    "fail": ("tasks/{task}/fail", {"error": "broke", "failure_reason": "agent_error.process_failure"}),
    "confirm_stop": ("tasks/{task}/cancel-ack", {}),
}
ASIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "progress": ("tasks/{task}/progress", {"summary": "s", "step": 1, "total": 2}),
    "messages": ("tasks/{task}/messages", {"messages": [{"seq": 1, "type": "text", "content": "t"}]}),
    "usage": ("tasks/{task}/usage", {"usage": [{"provider": "p", "model": "m", "input_tokens": 1}]}),
}
# What waits comes last, so that no claim of another state takes it.
STATES = sorted(Status, key=lambda status: status in WAITING)
REPORTS = {"pin_session", "complete", "fail", "confirm_stop"}


@pytest.fixture
def machine() -> Machine:
    return Machine.make(max_concurrent_tasks=50)


def send(machine: Machine, task: AgentTask, operation: str, token: str | None) -> tuple[int, dict[str, Any]]:
    path, body = {**OPERATIONS, **ASIDE}[operation]
    path = path.format(task=task.pk, runtime=machine.runtime.pk)
    answer = machine.post(path, {**body, **({"claim_token": token} if token else {})})
    return answer.status_code, answer.json()


def expected_refusal(operation: str, status: Status) -> tuple[int, str | None]:
    """The answer to a call of the row's own delivery (or without a token) whose verb may not act in `status`."""
    if status in WAITING:
        code = "start_claim_rejected" if operation == "start" else "stale_claim"
        return (200, None) if operation == "confirm_stop" else (409, code)
    if operation in ("pin_session", "confirm_stop"):
        return 200, None
    if status in TERMINAL:
        return (200, None) if operation in REPORTS else (409, "task_ended")
    if (operation, status) in (("start", Status.RUNNING), ("park", Status.WAITING_LOCAL_DIRECTORY)):
        return 200, None
    return 409, "conflict"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("with_token", [True, False], ids=["token", "no-token"])
def test_each_operation_moves_only_from_the_states_of_its_verb(
    machine: Machine, operation: str, with_token: bool
) -> None:
    """Q-07, Q-08, T-01: allowed pairs move, every other pair is refused or harmless and leaves the row as it was."""
    edge = EDGES[operation]
    for status in STATES:
        task = machine.in_state(status)
        before = row_text(task.pk)
        token = str(task.claim_token) if with_token and task.claim_token else None
        code, body = send(machine, task, operation, token)
        if status in edge.sources:
            assert code == 200, (status, body)
            assert row_text(task.pk) != before, status
            assert fresh(task).status == (edge.target or status)
        else:
            assert (code, body.get("code")) == expected_refusal(operation, status), status
            assert row_text(task.pk) == before, status


@pytest.mark.parametrize("operation", [*OPERATIONS, *ASIDE])
def test_an_old_delivery_changes_nothing_and_leaves_one_entry(machine: Machine, operation: str) -> None:
    """L-10, L-11, Q-07: a token that is not the row's is refused in every state, kept once, and touches no table."""
    refusal = "start_claim_rejected" if operation == "start" else "stale_claim"
    for status in STATES:
        task = machine.in_state(status)
        before = row_text(task.pk)
        code, body = send(machine, task, operation, stranger_token())
        assert (code, body["code"]) == (409, refusal), status
        assert body["error"].startswith(refusal)
        assert row_text(task.pk) == before, status
        assert ledger(task.pk) == [(operation, refusal)], status
    assert not TaskMessage.objects.exists()
    assert not TaskProgress.objects.exists()
    assert not TaskUsage.objects.exists()


def test_a_status_poll_of_an_old_delivery_is_told_to_stop(machine: Machine) -> None:
    """L-11: with the row's token the status, with another 409 and one entry; the row stays."""
    for status in STATES:
        task = machine.in_state(status)
        before = row_text(task.pk)
        assert machine.get(f"tasks/{task.pk}/status").json() == {"status": status}
        if task.claim_token:
            own = machine.get(f"tasks/{task.pk}/status?claim_token={task.claim_token}")
            assert own.json() == {"status": status}
        stale = machine.get(f"tasks/{task.pk}/status?claim_token={stranger_token()}")
        assert (stale.status_code, stale.json()["code"]) == (409, "stale_claim")
        assert ledger(task.pk) == [("status", "stale_claim")]
        assert row_text(task.pk) == before


def test_a_token_that_is_no_token_is_an_old_one_and_not_none(machine: Machine) -> None:
    """L-10: only an absent or blank token leaves the verdict to the state."""
    task = machine.claimed()
    for garbage in ("zzz", "1", "00000000-0000-0000-0000-000000000000"):
        code, body = send(machine, task, "start", garbage)
        assert (code, body["code"]) == (409, "start_claim_rejected")
    assert send(machine, task, "start", "")[0] == 200
