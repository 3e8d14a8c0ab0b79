"""Every daemon route against every kind of wrong call: who calls, whose row, which id, what body."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.urls import URLPattern

from queue_app import auth
from queue_app.api.daemon.urls import urlpatterns
from queue_app.models import AgentTask, LateWrite, RuntimeProfile, TaskToken
from tests.support import factories
from tests.support.machine import Machine, fresh, row_text

pytestmark = pytest.mark.django_db(transaction=True)

TASK_ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "tasks/{task}/wait-local-directory": ("POST", {"reason": "busy"}),
    "tasks/{task}/start": ("POST", {}),
    "tasks/{task}/status": ("GET", {}),
    "tasks/{task}/progress": ("POST", {"summary": "s", "step": 1, "total": 2}),
    "tasks/{task}/messages": ("POST", {"messages": [{"seq": 1, "type": "text", "content": "t"}]}),
    "tasks/{task}/session": ("POST", {"session_id": "s"}),
    "tasks/{task}/usage": ("POST", {"usage": [{"provider": "p", "model": "m", "input_tokens": 1}]}),
    "tasks/{task}/complete": ("POST", {"output": "x"}),
    "tasks/{task}/fail": ("POST", {"error": "x"}),
    "tasks/{task}/cancel-ack": ("POST", {}),
    "runtimes/{runtime}/tasks/{task}/prepare-lease": ("POST", {}),
    "runtimes/{runtime}/tasks/{task}/skill-bundles/resolve": ("POST", {"skills": [{"id": "x"}]}),
}
RUNTIME_ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "runtimes/{runtime}/tasks/claim": ("POST", {}),
    "runtimes/{runtime}/recover-orphans": ("POST", {}),
    "runtimes/{runtime}/tasks/pending": ("GET", {}),
    "runtimes/{runtime}/update/{any}/result": ("POST", {"status": "completed"}),
    "runtimes/{runtime}/models/{any}/result": ("POST", {"status": "completed"}),
    "runtimes/{runtime}/local-skills/{any}/result": ("POST", {"status": "completed"}),
    "runtimes/{runtime}/local-skills/import/{any}/result": ("POST", {"status": "completed"}),
}
GC_ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "workspaces/{workspace}/issues/gc-check": ("POST", {"issue_ids": []}),
    "issues/{issue}/gc-check": ("GET", {}),
    "tasks/{task}/gc-check": ("GET", {}),
}
WORKSPACE_ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "workspaces/{workspace}/repos": ("GET", {}),
    "workspaces/{workspace}/runtime-profiles": ("GET", {}),
}
OTHER_ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "workspaces": ("GET", {}),
    "register": ("POST", {"daemon_id": "d", "workspace_id": "w", "runtimes": []}),
    "deregister": ("POST", {"runtime_ids": ["x"]}),
    "heartbeat": ("POST", {"runtime_id": "x"}),
    "tasks/claim": ("POST", {"daemon_id": "d", "runtime_ids": ["x"], "max_tasks": 1}),
    "claim": ("POST", {"daemon_id": "d", "runtime_ids": ["x"], "max_tasks": 1}),
}
ALL_ROUTES = {**TASK_ROUTES, **RUNTIME_ROUTES, **GC_ROUTES, **WORKSPACE_ROUTES, **OTHER_ROUTES}
REPORTS = ("complete", "fail", "cancel-ack", "result")


class Places:
    """What the ids of a path may stand for."""

    def __init__(self, machine: Machine, task: AgentTask) -> None:
        self.ids = {
            "task": task.pk,
            "runtime": machine.runtime.pk,
            "workspace": machine.workspace.pk,
            "issue": task.issue_id,
            "any": uuid4(),
        }

    def fill(self, route: str, **other: Any) -> str:
        return route.format(**{**self.ids, **other})


@pytest.fixture
def machine() -> Machine:
    return Machine.make()


def call(machine: Machine, route: str, places: Places, **options: Any) -> tuple[int, dict[str, Any]]:
    method, body = ALL_ROUTES[route]
    ids = options.pop("ids", {})
    path = f"/api/daemon/{places.fill(route, **ids)}"
    answer = machine.request(method, path, options.pop("body", body), **options)
    assert answer["Content-Type"] == "application/json"
    return answer.status_code, answer.json()


def test_the_table_has_every_route() -> None:
    """A route that is added is added here too."""
    served = [pattern for pattern in urlpatterns if isinstance(pattern, URLPattern)]
    assert len(ALL_ROUTES) == len(served) - 1  # the last one answers 501 to everything else


def test_without_a_credential_every_route_answers_401_in_the_words_of_the_protocol(machine: Machine) -> None:
    places = Places(machine, machine.claimed())
    for route in ALL_ROUTES:
        assert call(machine, route, places, secret=None) == (
            401,
            {"error": "missing authorization header", "code": "unauthenticated"},
        ), route
        headers = {"authorization": "Basic abc"}
        code, body = call(machine, route, places, secret=None, **headers)
        assert (code, body["error"]) == (401, "invalid authorization format"), route
        for secret in ("mul_" + "0" * 40, "mat_" + "0" * 40, "mcn_x", "x"):
            code, body = call(machine, route, places, secret=secret)
            assert (code, body["error"]) == (401, "invalid token"), route


def test_a_task_token_opens_no_daemon_route(machine: Machine) -> None:
    task = machine.claimed()
    assert task.claim_token is not None
    secret, token_hash = auth.mint(auth.TASK)
    TaskToken.objects.create(
        token_hash=token_hash,
        task=task,
        claim_token=task.claim_token,
        agent=machine.agent,
        workspace=machine.workspace,
        user=machine.user,
        expires_at="2999-01-01T00:00:00Z",
    )
    places = Places(machine, task)
    before = row_text(task.pk)
    for route in ALL_ROUTES:
        assert call(machine, route, places, secret=secret)[0] == 403, route
    assert row_text(task.pk) == before


def test_rows_of_another_workspace_are_out_of_reach_without_the_words_that_end_runs(machine: Machine) -> None:
    """A daemon whose user lost a workspace must not read that its tasks or runtimes are gone."""
    task = machine.claimed()
    places, stranger = Places(machine, task), Machine.make()
    before = row_text(task.pk)
    for route in {**TASK_ROUTES, **RUNTIME_ROUTES}:
        code, body = call(stranger, route, places)
        assert (code, body["error"]) == (404, "not found"), route
    for route in GC_ROUTES:
        assert call(stranger, route, places)[0] == 403, route
    for route in WORKSPACE_ROUTES:
        assert call(stranger, route, places) == (404, {"error": "workspace not found", "code": "not_found"}), route
    assert row_text(task.pk) == before
    assert not LateWrite.objects.exists()
    code, body = call(stranger, "heartbeat", places, body={"runtime_id": str(machine.runtime.pk)})
    assert (code, body["error"]) == (404, "not found")


@pytest.mark.parametrize("unknown", ["0192f0aa-1111-7222-8333-444455556666", "garbage", "01a22efb-9a10-77b5-bc3b"])
def test_rows_that_do_not_exist_get_the_magic_words(machine: Machine, unknown: str) -> None:
    """Exactly the texts that the daemon acts on: `task not found`, `runtime not found`."""
    places = Places(machine, machine.claimed())
    for route in TASK_ROUTES:
        code, body = call(machine, route, places, ids={"task": unknown})
        assert (code, body["error"]) == (404, "task not found"), route
    for route in RUNTIME_ROUTES:
        code, body = call(machine, route, places, ids={"runtime": unknown})
        assert (code, body["error"]) == (404, "runtime not found"), route
    code, body = call(machine, "heartbeat", places, body={"runtime_id": unknown})
    assert (code, body["error"]) == (404, "runtime not found")
    assert call(machine, "tasks/{task}/gc-check", places, ids={"task": unknown})[0] == 404
    assert call(machine, "issues/{issue}/gc-check", places, ids={"issue": unknown})[0] == 404
    # A check of many in a workspace that nobody has must not read as "all gone".
    code, _ = call(machine, "workspaces/{workspace}/issues/gc-check", places, ids={"workspace": unknown})
    assert code == 403


def test_a_batch_claim_is_never_404(machine: Machine) -> None:
    """Unknown, foreign and malformed runtimes are skipped: a 404 would make the daemon give up batches."""
    stranger = Machine.make()
    for route in ("tasks/claim", "claim"):
        body = {"daemon_id": "d", "runtime_ids": [str(uuid4()), str(stranger.runtime.pk), "x", None], "max_tasks": 3}
        answer = machine.post(route, body)
        assert (answer.status_code, answer.json()) == (200, {"tasks": []})
    assert machine.post("tasks/claim", {"runtime_ids": [], "max_tasks": 1}).json()["field"] == "daemon_id"
    assert machine.post("tasks/claim", {"daemon_id": "d", "max_tasks": -1}).json()["field"] == "max_tasks"
    body = {"daemon_id": machine.runtime.daemon_id, "runtime_ids": [str(machine.runtime.pk)], "max_tasks": 0}
    machine.queued()
    assert machine.post("tasks/claim", body).json() == {"tasks": []}


@pytest.mark.parametrize("garbage", [b"{", b"[]", b'"x"', b"\xff\xfe", b"1", b'{"a":NaN}', b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused_by_name_and_changes_nothing(machine: Machine, garbage: bytes) -> None:
    task = machine.claimed()
    places = Places(machine, task)
    before = row_text(task.pk)
    for route, (method, _) in ALL_ROUTES.items():
        if method == "POST":
            code, body = call(machine, route, places, body=garbage)
            assert (code, body["field"]) == (400, "body"), route
    assert row_text(task.pk) == before


def test_a_wrong_type_is_refused_with_its_path(machine: Machine) -> None:
    places = Places(machine, machine.claimed())
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "register": ({"runtimes": [{"name": "x"}, {"name": 5}]}, "runtimes[1].name"),
        "deregister": ({"runtime_ids": "x"}, "runtime_ids"),
        "heartbeat": ({"runtime_id": "x", "active_tasks": [{"task_id": {}}]}, "active_tasks[0].task_id"),
        "tasks/claim": ({"daemon_id": "d", "max_tasks": "many"}, "max_tasks"),
        "tasks/{task}/messages": ({"messages": [{"seq": "x"}]}, "messages[0].seq"),
        "tasks/{task}/usage": ({"usage": [{"input_tokens": 1.5}]}, "usage[0].input_tokens"),
        "tasks/{task}/progress": ({"step": 2**40}, "step"),
        "workspaces/{workspace}/issues/gc-check": ({"issue_ids": [1]}, "issue_ids[0]"),
    }
    for route, (body, field) in wrong.items():
        code, said = call(machine, route, places, body=body)
        assert (code, said["field"]) == (400, field), route
        assert said["error"].startswith(f"{field}: "), route


def test_what_is_not_served_answers_501_and_a_wrong_method_405(machine: Machine) -> None:
    """A 404 on a path that this server does not have would make a daemon delete or give up something."""
    for path in ("nope", "tasks/x/nope", "chat-sessions/x/gc-check", "plugins", ""):
        for method in ("GET", "POST", "PUT", "DELETE"):
            assert machine.request(method, f"/api/daemon/{path}").status_code == 501, (method, path)
    task = machine.claimed()
    places = Places(machine, task)
    for route, (method, _) in ALL_ROUTES.items():
        other = "POST" if method == "GET" else "GET"
        answer = machine.request(other, f"/api/daemon/{places.fill(route)}")
        assert (answer.status_code, answer["Allow"]) == (405, method), route


def test_no_route_redirects_or_asks_for_a_csrf_token(machine: Machine) -> None:
    """A followed redirect would turn a POST into a GET and lose its body."""
    machine.client.handler.enforce_csrf_checks = True
    places = Places(machine, machine.claimed())
    for route, (method, body) in ALL_ROUTES.items():
        path = f"/api/daemon/{places.fill(route)}"
        assert machine.request(method, f"{path}/", body).status_code not in (301, 302, 307, 308), route
        assert machine.request(method, path, body).status_code != 403, route


def test_a_mismatched_runtime_gets_no_lease(machine: Machine) -> None:
    task = machine.claimed()
    other = factories.make_runtime(machine.workspace, provider="other")
    before = row_text(task.pk)
    answer = machine.post(f"runtimes/{other.pk}/tasks/{task.pk}/prepare-lease", {"claim_token": str(task.claim_token)})
    assert (answer.status_code, answer.json()["error"]) == (404, "not found")
    assert row_text(task.pk) == before


def test_no_field_of_any_body_sets_a_status(machine: Machine) -> None:
    """Q-06: a status that is sent along is ignored; only the verb of a route moves a row, and no other route does."""
    forced = {
        "status": "completed",
        "state": "completed",
        "completed_at": "2026-01-01T00:00:00Z",
        "task": {"status": "x"},
    }
    for route in ("progress", "messages", "session", "usage", "cancel-ack", "status"):
        task = machine.in_state("running")
        places = Places(machine, task)
        call(machine, f"tasks/{{task}}/{route}", places, body={**TASK_ROUTES[f"tasks/{{task}}/{route}"][1], **forced})
        assert fresh(task).status == "running", route
        machine.post(f"tasks/{task.pk}/complete", {"output": "x"})
    task = machine.claimed()
    before = row_text(task.pk)
    for method in ("PUT", "PATCH", "DELETE"):
        for path in (f"/api/tasks/{task.pk}", f"/api/daemon/tasks/{task.pk}", f"/api/daemon/tasks/{task.pk}/status"):
            assert machine.request(method, path, forced).status_code in (404, 405, 501), (method, path)
    assert row_text(task.pk) == before


def test_a_skill_that_was_never_sent_is_unknown(machine: Machine) -> None:
    """Claims carry whole skills, so no reference can be resolved: 404 in preparation, 409 outside it."""
    path = "runtimes/{}/tasks/{}/skill-bundles/resolve"
    task = machine.claimed()
    answer = machine.post(path.format(machine.runtime.pk, task.pk), {"skills": [{"id": "s", "source": "workspace"}]})
    assert (answer.status_code, answer.json()["error"]) == (404, "skill not found")
    machine.post(f"tasks/{task.pk}/start", {"claim_token": str(task.claim_token)})
    assert machine.post(path.format(machine.runtime.pk, task.pk), {"skills": []}).status_code == 409


def test_only_enabled_profiles_are_listed(machine: Machine) -> None:
    values: dict[str, Any] = {"protocol_family": "plain", "command_name": "run", "fixed_args": ["-x"]}
    shown = RuntimeProfile.objects.create(workspace=machine.workspace, display_name="On", **values)
    RuntimeProfile.objects.create(workspace=machine.workspace, display_name="Off", enabled=False, **values)
    body = machine.get(f"workspaces/{machine.workspace.pk}/runtime-profiles").json()
    assert body["workspace_id"] == str(machine.workspace.pk)
    (profile,) = body["runtime_profiles"]
    assert profile == {
        "id": str(shown.pk),
        "workspace_id": str(machine.workspace.pk),
        "display_name": "On",
        "protocol_family": "plain",
        "command_name": "run",
        "description": None,
        "fixed_args": ["-x"],
        "visibility": "workspace",
        "enabled": True,
    }


def test_workspaces_are_a_bare_array_that_can_be_unchanged(machine: Machine) -> None:
    first = machine.get("workspaces")
    assert first.json() == [{"id": str(machine.workspace.pk), "name": machine.workspace.name}]
    tag = first["ETag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = machine.get("workspaces", **{"if-none-match": known})
        assert (again.status_code, again.content, again["ETag"]) == (304, b"", tag)
    factories.make_workspace(machine.user)
    changed = machine.get("workspaces", **{"if-none-match": tag})
    assert changed.status_code == 200
    assert len(changed.json()) == 2


def test_gc_checks_say_found_only_of_the_workspace(machine: Machine) -> None:
    """One entry for each asked id, spelled as it was asked; a status of the user's own reads as open."""
    mine = factories.make_issue(machine.workspace, status="done")
    odd = factories.make_issue(machine.workspace, status="parked")
    foreign = factories.make_issue(Machine.make().workspace)
    asked = [str(mine.pk), str(mine.pk).upper(), str(foreign.pk), "garbage", str(odd.pk)]
    body = machine.post(f"workspaces/{machine.workspace.pk}/issues/gc-check", {"issue_ids": asked}).json()
    assert [entry["id"] for entry in body["issues"]] == asked
    assert [entry["found"] for entry in body["issues"]] == [True, True, False, False, True]
    assert [entry.get("status") for entry in body["issues"]] == ["done", "done", None, None, "in_progress"]
    assert body["issues"][0]["updated_at"] == mine.updated_at.isoformat()
    many = {"issue_ids": ["x"] * 501}
    assert machine.post(f"workspaces/{machine.workspace.pk}/issues/gc-check", many).json()["field"] == "issue_ids"
    assert machine.get(f"issues/{mine.pk}/gc-check").json()["status"] == "done"


def test_what_waits_for_a_runtime_is_listed_in_the_order_of_a_claim(machine: Machine) -> None:
    low, high = machine.queued(priority=0), machine.queued(priority=3)
    rows = machine.get(f"runtimes/{machine.runtime.pk}/tasks/pending").json()
    assert [row["id"] for row in rows] == [str(high.pk), str(low.pk)]
