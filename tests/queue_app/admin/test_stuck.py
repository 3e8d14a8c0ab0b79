"""Every reason for which an open task does not run is named, with since when, the blocker and what comes next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from queue_app import transitions
from queue_app.models import Agent, AgentTask
from queue_app.services import waiting
from tests.queue_app.admin.conftest import put_in_state
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/admin/queue_app/agenttask/stuck/"


def why(task: AgentTask) -> waiting.Waiting:
    found = waiting.of(task.id)
    assert found is not None
    return found


def runtime_fields(agent: Agent, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(agent.runtime, name, value)
    assert agent.runtime is not None
    agent.runtime.save()


def test_a_claimable_task_is_held_by_nothing(agent: Agent) -> None:
    assert why(factories.enqueue(agent)).rule is waiting.CLAIMABLE
    running = put_in_state(factories.enqueue(agent, factories.make_issue(agent.workspace)), "queued")
    assert waiting.of(running.id) is not None
    ended = put_in_state(running, "cancelled")
    assert waiting.of(ended.id) is None


def test_the_machine_holds_it(agent: Agent) -> None:
    """A-01: the runtime's own predicates, each with the time since when."""
    task, now = factories.enqueue(agent), timezone.now()
    later = now + timedelta(minutes=10)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("runtime_online", {"status": "offline"}),
        ("runtime_fresh", {"last_seen_at": now - timedelta(hours=1)}),
        ("runtime_not_paused", {"paused_at": now, "paused_until": later}),
        ("runtime_has_owner", {"owner": None}),
    ]
    healthy = {"status": "online", "last_seen_at": now, "paused_at": None, "owner": agent.owner}
    for name, fields in cases:
        runtime_fields(agent, **{**healthy, **fields})
        found = why(task)
        assert found.rule.name == name
        assert found.blocker == waiting.Blocker("runtime", agent.runtime_id, "Plain (test)")  # type: ignore[arg-type]
        assert found.since >= task.created_at
        if name == "runtime_not_paused":
            assert found.next_at == later
        else:
            assert "queued_expired" in found.next_step


def test_the_agent_holds_it(agent: Agent) -> None:
    task, now = factories.enqueue(agent), timezone.now()
    cases: list[tuple[str, dict[str, Any]]] = [
        ("agent_not_archived", {"archived_at": now}),
        ("agent_not_paused", {"paused_at": now}),
        ("agent_bound", {"runtime_id": factories.make_runtime(agent.workspace).id}),
    ]
    for name, fields in cases:
        Agent.objects.filter(id=agent.id).update(**{"archived_at": None, "paused_at": None, **fields})
        found = why(task)
        assert (found.rule.name, found.blocker) == (name, waiting.Blocker("agent", agent.id, agent.name))


def test_the_cap_and_the_sibling_hold_it(agent: Agent) -> None:
    agent.max_concurrent_tasks = 1
    agent.save()
    issue = factories.make_issue(agent.workspace)
    running = put_in_state(factories.enqueue(agent, issue), "running")
    second = factories.enqueue(agent, issue)
    assert why(second).rule.name == "agent_below_cap"
    assert any("same issue" in text for text in why(second).also)
    agent.max_concurrent_tasks = 2
    agent.save()
    found = why(second)
    assert (found.rule.name, found.blocker) == ("key_free", waiting.Blocker("task", running.id, "the task at work"))


def test_a_run_that_is_being_stopped_holds_what_follows(agent: Agent) -> None:
    issue = factories.make_issue(agent.workspace)
    running = put_in_state(factories.enqueue(agent, issue), "running")
    transitions.cancel([running.id], actor="user:test")
    found = why(factories.enqueue(agent, issue))
    assert found.rule.name == "nothing_stopping"
    assert found.blocker is not None
    assert found.blocker.id == running.id
    assert found.next_at is not None
    assert found.next_at > timezone.now()


def test_deferred_tasks_say_when_they_are_queued(agent: Agent) -> None:
    issue, now = factories.make_issue(agent.workspace), timezone.now()
    task = factories.enqueue(agent, issue, status="deferred", fire_at=now + timedelta(hours=1))
    assert (why(task).rule, why(task).next_at) == (waiting.NOT_DUE, task.fire_at)
    after = now + timedelta(hours=2)
    assert waiting.listing(ids=[task.id], now=after)[0].rule.name == "runtime_fresh"
    due = factories.enqueue(agent, issue, status="deferred", fire_at=now - timedelta(seconds=1))
    assert why(due).rule is waiting.DUE
    front = factories.enqueue(agent, issue)
    assert (why(due).rule, why(due).blocker) == (
        waiting.SLOT_TAKEN,
        waiting.Blocker("task", front.id, "the task in front"),
    )


def test_preparing_tasks_say_when_their_lease_ends(agent: Agent) -> None:
    task = put_in_state(factories.enqueue(agent), "dispatched")
    found = why(task)
    assert found.rule is waiting.DELIVERED
    assert "delivered once more" in found.next_step
    transitions.renew_lease(task.id, runtime_id=task.runtime_id, claim_token=task.claim_token, actor="daemon:t")  # type: ignore[arg-type]
    task.refresh_from_db()
    assert (why(task).rule, why(task).next_at) == (waiting.PREPARING_NOW, task.prepare_lease_expires_at)
    transitions.park(task.id, claim_token=task.claim_token, wait_reason="/srv/x is in use", actor="daemon:t")
    assert (why(task).rule.name, why(task).rule.text) == ("local_directory", "/srv/x is in use")


def test_the_page_counts_by_rule_filters_and_links(client: Client, agent: Agent) -> None:
    """AD-16, AD-17: filters are in the address, blockers are links."""
    issue = factories.make_issue(agent.workspace)
    running = put_in_state(factories.enqueue(agent, issue), "running")
    second, free = factories.enqueue(agent, issue), factories.enqueue(agent)
    assert f'href="{PAGE}"' in client.get("/admin/queue_app/agenttask/").content.decode()
    body = client.get(PAGE).content.decode()
    assert "key_free</a>" in body.replace(" (1)", "").replace("\n", "")
    assert f"/agenttask/{running.id}/change/" in body
    for rule, task, other in (("key_free", second, free), ("claimable", free, second)):
        body = client.get(PAGE, {"rule": rule}).content.decode()
        assert f"/agenttask/{task.id}/change/" in body
        assert f"/agenttask/{other.id}/change/" not in body
    foreign = factories.make_agent(factories.make_runtime(agent.workspace))
    assert "Every open task runs." in client.get(PAGE, {"agent": str(foreign.id)}).content.decode()
    assert client.get(PAGE, {"runtime": "x", "after": "y~z", "rule": "<b>"}).status_code == 200


def test_windows_follow_each_other(client: Client, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WINDOW", 2)
    monkeypatch.setattr("queue_app.console.stuck.WINDOW", 2)
    tasks = [factories.enqueue(agent) for _ in range(5)]
    seen: list[str] = []
    address = ""
    for _ in range(4):
        answer = client.get(PAGE + address)
        seen += [str(row.row["id"]) for row in answer.context["rows"]]
        address = answer.context["following"]
        if not address:
            break
    assert seen == [str(task.id) for task in tasks]


def test_one_statement_explains_any_number_of_tasks(agent: Agent) -> None:
    for _ in range(20):
        factories.enqueue(agent)
    with CaptureQueriesContext(connection) as seen:
        assert len(waiting.listing()) == 20
    assert len(seen) == 1


def test_what_is_called_claimable_is_claimed_and_nothing_else_is(agent: Agent) -> None:
    """A-01: the page and the claim agree, over tasks that are held for different reasons."""
    from queue_app import auth
    from queue_app.services import claim

    workspace = agent.workspace
    agents = [agent, *(factories.make_agent(agent.runtime) for _ in range(3))]  # type: ignore[arg-type]
    Agent.objects.filter(id=agents[1].id).update(paused_at=timezone.now())
    Agent.objects.filter(id=agents[2].id).update(archived_at=timezone.now())
    issue = factories.make_issue(workspace)
    put_in_state(factories.enqueue(agent, issue), "running")
    factories.enqueue(agent, issue)
    for each in (*agents[:2], agents[3]):
        factories.enqueue(each)
    expected = {row.row["id"] for row in waiting.listing() if row.rule is waiting.CLAIMABLE}
    assert len(expected) == 2
    runtime = agent.runtime
    assert runtime is not None
    caller = auth.for_user(factories.owner_of(workspace))
    claimed = claim.claim(caller, daemon_id=runtime.daemon_id, runtime_ids=[str(runtime.id)], max_tasks=20)
    assert {row["id"] for row in claimed} == {str(ident) for ident in expected}
