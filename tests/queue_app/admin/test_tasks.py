"""The task pages: state can be looked at by everyone allowed and changed by nobody except through the verbs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from queue_app.domain.states import Status
from queue_app.models import Agent, AgentTask, AuditEntry, LateWrite, TaskEvent, TaskMessage, TaskUsage
from tests.queue_app.admin.conftest import operator, put_in_state
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "/admin/queue_app/agenttask/"


def row_of(task: AgentTask) -> dict[str, Any]:
    return dict(AgentTask.objects.filter(id=task.id).values().get())


def act(client: Client, verb: str, *tasks: AgentTask, **fields: Any) -> Any:
    data = {"action": verb, ACTION_CHECKBOX_NAME: [str(task.id) for task in tasks], **fields}
    return client.post(LIST, data, follow=True)


def text_of(answer: Any) -> str:
    return re.sub(r"<[^>]+>", " ", answer.content.decode())


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.DEFERRED}))
def test_no_form_and_no_bulk_edit_changes_a_state(client: Client, agent: Agent, status: str) -> None:
    """Q-06, AD-01: every way to write through the admin is tried on a task in each state; the row stays as it was."""
    task = put_in_state(factories.enqueue(agent, factories.make_issue(agent.workspace)), status)
    before, page = row_of(task), f"{LIST}{task.id}/change/"
    for name in ("status", "claim_token", "attempt", "runtime", "lease_extensions", "completed_at", "event_seq"):
        for value in ("completed", "1", "2026-01-01"):
            assert client.post(page, {name: value, "_save": "Save"}).status_code == 403
    assert client.post(LIST, {"form-TOTAL_FORMS": "1", "form-0-status": "completed", "_save": "Save"}).status_code < 500
    assert client.post(f"{LIST}add/", {"status": "running"}).status_code == 403
    assert client.post(f"{LIST}{task.id}/delete/", {"post": "yes"}).status_code == 403
    act(client, "delete_selected", task, post="yes")
    assert row_of(task) == before


def test_pages_of_records_cannot_be_written(client: Client, agent: Agent) -> None:
    """Q-06, AD-02: no adding, no deleting, no changing of events' neighbours: decisions, late writes, audit, issues."""
    for name in ("claimdecision", "latewrite", "auditentry", "issue", "comment", "agenttask"):
        assert client.get(f"/admin/queue_app/{name}/").status_code == 200
        assert client.get(f"/admin/queue_app/{name}/add/").status_code == 403
    for model, page in admin.site._registry.items():
        if model._meta.app_label == "queue_app":
            assert "delete_selected" not in page.get_actions(_request(client)), model


def _request(client: Client) -> Any:
    return client.get(LIST).wsgi_request


def test_the_verbs_ask_for_a_note_and_then_go_through_the_service(client: Client, agent: Agent) -> None:
    """AD-03 to AD-05, AD-10: confirmation with a required note; done, skipped and failed add up; each is audited."""
    waiting = factories.enqueue(agent, factories.make_issue(agent.workspace))
    ended = put_in_state(factories.enqueue(agent, factories.make_issue(agent.workspace)), "cancelled")
    asked = act(client, "cancel_tasks", waiting, ended)
    assert "2 chosen" in text_of(asked)
    assert act(client, "cancel_tasks", waiting, ended, confirmed="1", note=" ").status_code == 200
    waiting.refresh_from_db()
    assert waiting.status == "queued"
    done = act(client, "cancel_tasks", waiting, ended, confirmed="1", note="wrong branch")
    assert "1 done, 1 skipped, 0 failed" in text_of(done)
    waiting.refresh_from_db()
    assert waiting.status == "cancelled"
    (entry,) = AuditEntry.objects.filter(object_id=waiting.id)
    assert (entry.verb, entry.note, entry.workspace_id) == ("cancel", "wrong branch", agent.workspace_id)
    event = TaskEvent.objects.filter(task=waiting).latest("seq")
    assert (event.verb, event.actor) == ("cancel", entry.actor)


def test_running_again_makes_a_new_attempt(client: Client, agent: Agent) -> None:
    failed = put_in_state(factories.enqueue(agent, factories.make_issue(agent.workspace)), "failed")
    done = act(client, "rerun_tasks", failed, confirmed="1", note="try once more")
    assert "1 done, 0 skipped, 0 failed" in text_of(done)
    again = AgentTask.objects.get(rerun_of_task_id=failed.id)
    assert again.status == "queued"
    assert AuditEntry.objects.get(object_id=failed.id).note == "try once more"
    skipped = act(client, "rerun_tasks", again, confirmed="1", note="x")
    assert "0 done, 1 skipped, 0 failed" in text_of(skipped)


def test_a_viewer_sees_and_cannot_act(agent: Agent) -> None:
    """AD-07: looking and acting are different rights."""
    task = factories.enqueue(agent)
    viewer = operator(is_superuser=False)
    viewer.user_permissions.add(Permission.objects.get(codename="view_agenttask"))
    client = Client()
    client.force_login(viewer)
    assert client.get(f"{LIST}{task.id}/change/").status_code == 200
    assert client.get(f"{LIST}stuck/").status_code == 200
    act(client, "cancel_tasks", task, confirmed="1", note="x")
    assert row_of(task)["status"] == "queued"
    assert client.get("/admin/queue_app/agent/").status_code == 403
    for path in (LIST, f"{LIST}stuck/"):
        assert Client().get(path).status_code == 302


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'javascript:alert(3)"


def test_what_agents_say_is_inert_on_every_page(client: Client, agent: Agent) -> None:
    """AD-13, AD-14: markup in messages, results, errors, names and payloads is text; tokens in them are masked."""
    issue = factories.make_issue(agent.workspace, title=HOSTILE, description=HOSTILE)
    agent.name = HOSTILE
    agent.save()
    agent.runtime.name = HOSTILE  # type: ignore[union-attr]
    agent.runtime.save()  # type: ignore[union-attr]
    task = factories.enqueue(agent, issue, trigger_summary=HOSTILE, handoff_note=HOSTILE)
    secret = "mul_" + "a1" * 20
    TaskMessage.objects.create(
        task=task,
        seq=1,
        type=HOSTILE[:16],
        tool=HOSTILE,
        content=HOSTILE + secret,
        input={HOSTILE: HOSTILE},
        output=HOSTILE,
    )
    TaskUsage.objects.create(task=task, provider=HOSTILE, model=HOSTILE)
    LateWrite.objects.create(task=task, verb="fail", code="stale_claim", status="running", payload={"error": HOSTILE})
    AuditEntry.objects.create(actor=HOSTILE[:40], verb="x", object_type="task", object_id=task.id, note=HOSTILE)
    pages = [
        LIST,
        f"{LIST}{task.id}/change/",
        f"{LIST}stuck/",
        "/admin/queue_app/issue/",
        f"/admin/queue_app/issue/{issue.id}/change/",
        "/admin/queue_app/agent/",
        f"/admin/queue_app/agent/{agent.id}/change/",
        "/admin/queue_app/agentruntime/",
        "/admin/queue_app/auditentry/",
        "/admin/queue_app/latewrite/",
    ]
    bodies = {page: client.get(page).content.decode() for page in pages}
    bodies["confirm"] = act(client, "cancel_tasks", task).content.decode()
    for page, body in bodies.items():
        assert "<script>alert(1)" not in body, page
        assert "<img src=x" not in body, page
        assert secret not in body, page
        assert not re.search(r"""(?:src|href|action)=["']?(?:https?:)?//""", body), f"{page} loads from elsewhere"
    assert "&lt;script&gt;alert(1)" in bodies[f"{LIST}{task.id}/change/"]


def test_the_page_of_a_task_shows_what_belongs_to_it(client: Client, agent: Agent) -> None:
    task = put_in_state(factories.enqueue(agent, factories.make_issue(agent.workspace)), "failed")
    TaskMessage.objects.create(task=task, seq=1, type="text", content="hello from the run")
    TaskUsage.objects.create(task=task, provider="plain", model="m1", input_tokens=1234)
    LateWrite.objects.create(task=task, verb="complete", code="stale_claim", status="running")
    page = text_of(client.get(f"{LIST}{task.id}/change/"))
    for piece in (
        "enqueue",
        "claim",
        "start",
        "fail",
        "hello from the run",
        "1234",
        "stale_claim",
        "boom",
        "Task token",
    ):
        assert piece in page
    assert client.get(f"{LIST}nonsense/change/", follow=True).status_code in (200, 404)


def test_lists_cost_the_same_statements_for_any_number_of_rows(client: Client, agent: Agent) -> None:
    """AD-15: no page asks once for each row."""

    def cost(path: str) -> int:
        client.get(path)
        with CaptureQueriesContext(connection) as seen:
            assert client.get(path).status_code == 200
        return len(seen)

    def grow() -> AgentTask:
        runtime = factories.make_runtime(agent.workspace)
        one = factories.make_agent(runtime)
        task = factories.enqueue(one, factories.make_issue(agent.workspace, assignee_type="agent", assignee_id=one.id))
        TaskMessage.objects.create(task=task, seq=1, type="text")
        return task

    grow()
    pages = [LIST, f"{LIST}stuck/", *(f"/admin/queue_app/{name}/" for name in ("agent", "agentruntime", "issue"))]
    before = {page: cost(page) for page in pages}
    for _ in range(12):
        grow()
    assert {page: cost(page) for page in pages} == before
    assert max(before.values()) <= 14, before


def test_tasks_are_found_by_id_key_and_tail(client: Client, agent: Agent) -> None:
    issue = factories.make_issue(agent.workspace, number=4711)
    task, other = factories.enqueue(agent, issue), factories.enqueue(agent)

    def found(term: str) -> set[str]:
        body = client.get(LIST, {"q": term}).content.decode()
        return {str(t.id) for t in (task, other) if f"/agenttask/{t.id}/change/" in body}

    assert found(str(task.id)) == found(str(task.id)[-12:]) == found("mul-4711") == {str(task.id)}
    assert found("no such thing") == found("\x00") - found("\x00") == set()


def test_filters_narrow_the_list(client: Client, agent: Agent) -> None:
    failed = put_in_state(factories.enqueue(agent, factories.make_issue(agent.workspace)), "failed")
    queued = factories.enqueue(agent)

    def found(**query: str) -> set[str]:
        body = client.get(LIST, query).content.decode()
        return {str(t.id) for t in (failed, queued) if f"/agenttask/{t.id}/change/" in body}

    assert found(status="open") == found(status="queued") == found(kind__exact="quick_create") == {str(queued.id)}
    assert found(status="ended") == found(reason="agent_error.process_failure") == {str(failed.id)}
    assert found(agent=str(agent.id), runtime=str(agent.runtime_id)) == {str(failed.id), str(queued.id)}
    assert found(issue__id__exact=str(failed.issue_id)) == {str(failed.id)}
    assert found(agent="nonsense") == set()


def test_a_healthy_run_and_one_of_a_lost_machine_look_different(client: Client, agent: Agent) -> None:
    """A-05: waiting, preparing, a healthy long run and a dead run have four different labels."""
    labels = []
    for status in ("running", "dispatched", "queued"):
        put_in_state(factories.enqueue(agent, factories.make_issue(agent.workspace)), status)
    for online in (True, False):
        agent.runtime.status = "online" if online else "offline"  # type: ignore[union-attr]
        agent.runtime.save()  # type: ignore[union-attr]
        labels.append(set(re.findall(r'mc-label mc-\w+">([^<]+)<', client.get(LIST).content.decode())))
    assert labels[0] == {"waiting", "preparing", "running"}
    assert labels[1] == {"waiting", "preparing", "running, machine not heard"}
