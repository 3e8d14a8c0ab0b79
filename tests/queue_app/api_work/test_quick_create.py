"""One sentence becomes an issue, and the person who asked hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from queue_app.auth import for_user
from queue_app.models import AgentTask, InboxItem, Issue
from queue_app.services import cancel, fail
from queue_app.services.complete import complete
from tests.queue_app.api_work.conftest import World, dispatch
from tests.support import lifecycle

pytestmark = pytest.mark.django_db(transaction=True)


def ask(world: World, **fields: Any) -> AgentTask:
    body = {"agent_id": str(world.agent.id), "prompt": "the login page is slow", **fields}
    answer = world.api.post("issues/quick-create", body)
    assert answer.status_code == 202, answer.content
    return AgentTask.objects.get(id=answer.json()["id"])


def run(world: World, task: AgentTask) -> AgentTask:
    return lifecycle.start(dispatch(task))


def test_the_task_and_its_answer(world: World) -> None:
    """Q-01, Q-09, Q-13, Q-16, Q-18: a quick-create row of the person who asked, with what its prompt needs."""
    parent = world.issue()
    task = ask(world, priority="high", due_date="2026-12-24", parent_issue_id=str(parent.id))
    assert (task.kind, task.issue_id, task.serial_key, task.priority) == ("quick_create", None, "quick-create", 3)
    assert task.originator_user_id == task.accountable_user_id == task.initiator_user_id == world.owner.id
    assert (task.originator_source, task.trigger_evidence_kind) == ("direct_human", "quick_create")
    assert task.context == {
        "prompt": "the login page is slow",
        "requester_id": str(world.owner.id),
        "priority": "high",
        "due_date": "2026-12-24",
        "parent_issue_id": str(parent.id),
    }


def test_two_of_one_agent_never_overlap(world: World) -> None:
    """DUP-06: the second waits for the first."""
    first, second = ask(world), ask(world)
    dispatch(first)
    with pytest.raises(AssertionError):
        dispatch(second)


def test_the_made_issue_comes_to_the_inbox(world: World) -> None:
    """The issue is found by its origin, once, however often the end is reported; it can be marked as read."""
    task = run(world, ask(world))
    made = world.agent_api(task).post(
        "issues", {"title": "Slow login", "origin_type": "quick_create", "origin_id": str(task.id)}
    )
    assert made.status_code == 201, made.content
    for _ in range(2):
        complete(for_user(world.owner), task.id, claim_token=task.claim_token, result={"output": "made"})
    (item,) = world.api.get("inbox", unread="true").json()
    issue = Issue.objects.get(id=made.json()["id"])
    assert (item["type"], item["issue_id"], item["task_id"]) == ("quick_create_done", str(issue.id), str(task.id))
    assert (item["issue_identifier"], item["title"]) == (issue.identifier, f"{issue.identifier}: Slow login")
    assert world.api.post(f"inbox/{item['id']}/read").json()["read_at"] is not None
    assert world.api.get("inbox", unread="true").json() == []
    assert len(world.api.get("inbox").json()) == 1


def test_an_end_without_an_issue_says_why(world: World) -> None:
    """LOST-01: the agent's words, without secrets, and the sentence come back instead of vanishing."""
    task = run(world, ask(world))
    output = "I need a token, not ghp_0123456789abcdef0123456789abcdef0123"
    complete(for_user(world.owner), task.id, claim_token=task.claim_token, result={"output": output})
    (item,) = world.api.get("inbox").json()
    assert item["type"] == "quick_create_failed"
    assert "I need a token" in item["body"]
    assert "ghp_0123" not in item["body"]
    assert "the login page is slow" in item["body"]


def test_a_failure_is_told_and_not_retried(world: World) -> None:
    """R-09: quick-creates are not retried; a failure after the issue was made still leads to it."""
    task = run(world, ask(world))
    fail.fail(for_user(world.owner), task.id, claim_token=task.claim_token, error="x", failure_reason="timeout")
    assert AgentTask.objects.count() == 1
    assert InboxItem.objects.get().type == "quick_create_failed"
    late = run(world, ask(world))
    world.agent_api(late).post("issues", {"title": "T", "origin_type": "quick_create", "origin_id": str(late.id)})
    fail.fail(for_user(world.owner), late.id, claim_token=late.claim_token, error="x", failure_reason="timeout")
    assert InboxItem.objects.get(task_id=late.id).type == "quick_create_done"


def test_a_cancelled_one_tells_nothing(world: World) -> None:
    """Whoever cancels knows."""
    task = ask(world)
    cancel.cancel_task(for_user(world.owner), task.id)
    assert not InboxItem.objects.exists()


def test_who_may_ask_and_read(world: World, other: World) -> None:
    """D18: people only, own agents only, own items only."""
    task = run(world, ask(world))
    agent = world.agent_api(task)
    assert agent.post("issues/quick-create", {"agent_id": str(world.agent.id), "prompt": "x"}).status_code == 403
    assert agent.get("inbox").status_code == 403
    assert other.api.post("issues/quick-create", {"agent_id": str(world.agent.id), "prompt": "x"}).status_code == 404
    complete(for_user(world.owner), task.id, claim_token=task.claim_token, result={})
    item = InboxItem.objects.get()
    assert other.api.get("inbox").json() == []
    assert other.api.post(f"inbox/{item.id}/read").status_code == 404


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": " "}, "prompt"),
        ({"priority": "soon"}, "priority"),
        ({"due_date": "x"}, "due_date"),
        ({"parent_issue_id": "01920000-0000-7000-8000-000000000000"}, "parent_issue_id"),
    ],
)
def test_bad_fields_are_named(world: World, fields: dict[str, Any], field: str) -> None:
    """D17: a clear 400 and no row."""
    body = {"agent_id": str(world.agent.id), "prompt": "x", **fields}
    answer = world.api.post("issues/quick-create", body)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert not AgentTask.objects.exists()
