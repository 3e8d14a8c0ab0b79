"""The issue API for people: creating, finding, changing."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from queue_app.models import Issue, Member
from tests.queue_app.api_work.conftest import Api, World, make_world, person_token
from tests.support import factories

pytestmark = pytest.mark.django_db

# Fixed: every worker of a parallel run must name its tests alike.
NOBODY = "00000000-0000-7000-8000-000000000000"


def test_create_and_read_by_id_and_by_key(world: World) -> None:
    made = world.api.post("issues", {"title": "Fix it", "description": "now", "priority": "high", "unknown": [1]})
    assert made.status_code == 201
    body = made.json()
    assert (body["number"], body["identifier"], body["status"], body["priority"]) == (1, "MUL-1", "todo", "high")
    assert (body["creator_type"], body["creator_id"]) == ("member", str(world.owner.id))
    assert body["metadata"] == {}
    assert body["assignee_id"] is None
    assert body.pop("run") is None
    for ref in (body["id"], "MUL-1", "mul-1"):
        assert world.api.get(f"issues/{ref}").json() == body


@pytest.mark.parametrize("ref", ["MUL-99", "nonsense", NOBODY, "MUL-0", "%00", "MUL-99999999999"])
def test_an_unknown_reference_is_missing(world: World, ref: str) -> None:
    assert world.api.get(f"issues/{ref}").status_code == 404


def test_another_workspace_looks_like_nothing(world: World, other: World) -> None:
    """Nobody learns from an answer whether a row of another workspace exists."""
    issue, missing = other.issue(), str(uuid4())
    for verb, path, body in (
        ("GET", "issues/{}", None),
        ("PUT", "issues/{}", {"title": "mine"}),
        ("DELETE", "issues/{}", None),
        ("GET", "issues/{}/comments", None),
        ("POST", "issues/{}/comments", {"content": "hi"}),
        ("GET", "issues/{}/children", None),
        ("GET", "issues/{}/task-runs", None),
        ("GET", "issues/{}/usage", None),
        ("PUT", "issues/{}/metadata/k", {"value": 1}),
        ("POST", "issues/{}/rerun", {}),
    ):
        seen = world.api.call(verb, path.format(issue.id), body)
        absent = world.api.call(verb, path.format(missing), body)
        assert (seen.status_code, seen.content) == (absent.status_code, absent.content) == (404, seen.content), path
    issue.refresh_from_db()
    assert issue.title != "mine"
    assert world.api.get("issues").json() == {"issues": [], "total": 0}
    assert world.api.get("issues", workspace_id=str(other.workspace.id)).json()["total"] == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "title"),
        ({"title": None}, "title"),
        ({"title": 7}, "title"),
        ({"title": "  "}, "title"),
        ({"title": "x" * 1001}, "title"),
        ({"title": "x", "description": ["a"]}, "description"),
        ({"title": "x", "status": "doing"}, "status"),
        ({"title": "x", "status": True}, "status"),
        ({"title": "x", "priority": 3}, "priority"),
        ({"title": "x", "priority": "now"}, "priority"),
        ({"title": "x", "assignee_id": 12}, "assignee_id"),
        ({"title": "x", "assignee_id": "nobody"}, "assignee_id"),
        ({"title": "x", "assignee_type": "agent"}, "assignee_id"),
        ({"title": "x", "assignee_type": "squad", "assignee_id": NOBODY}, "assignee_id"),
        ({"title": "x", "assignee_type": "team", "assignee_id": NOBODY}, "assignee_type"),
        ({"title": "x", "assignee_type": "agent", "assignee_id": NOBODY}, "assignee_id"),
        ({"title": "x", "assignee_type": "member", "assignee_id": NOBODY}, "assignee_id"),
        ({"title": "x", "parent_issue_id": NOBODY}, "parent_issue_id"),
        ({"title": "x", "stage": "1"}, "stage"),
        ({"title": "x", "stage": 2**40}, "stage"),
        ({"title": "x", "stage": True}, "stage"),
        ({"title": "x", "position": "1"}, "position"),
        ({"title": "x", "due_date": "soon"}, "due_date"),
        ({"title": "x", "due_date": 20260101}, "due_date"),
        ({"title": "x", "allow_duplicate": "yes"}, "allow_duplicate"),
        ({"title": "x", "suppress_run": 1}, "suppress_run"),
        ({"title": "x", "workspace_id": 5}, "workspace_id"),
        ({"title": "x", "origin_type": "quick_create", "origin_id": NOBODY}, "origin_id"),
        (["title"], "body"),
        ("title", "body"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(world: World, body: Any, field: str) -> None:
    """D17: a clear 4xx that names the field, and nothing half-written: the next number is still 1."""
    answer = world.api.post("issues", body)
    assert answer.status_code == 400, answer.content
    assert answer.json()["field"] == field
    assert answer.json()["error"].startswith(f"{field}: ")
    assert world.issue().number == 1


@pytest.mark.parametrize("raw", ["{", "", "\xff", "[" * 100_000, '{"title": NaN}'])
def test_what_is_not_json_is_a_400(world: World, raw: str) -> None:
    from django.test import Client

    answer = Client().post(
        "/api/issues",
        data=raw.encode("latin-1"),
        content_type="application/json",
        headers={"Authorization": f"Bearer {world.api.token}"},
    )
    assert answer.status_code == 400
    assert "error" in answer.json()


def test_text_that_postgresql_cannot_hold_is_cleaned(world: World) -> None:
    made = world.api.post("issues", {"title": "a\x00b\ud800c", "description": "\x00"})
    assert made.status_code == 201
    assert (made.json()["title"], made.json()["description"]) == ("ab�c", "")
    issue = made.json()["id"]
    assert world.api.put(f"issues/{issue}/metadata/k", {"value": {"\x00x": ["\x00"]}}).json() == {
        "metadata": {"k": {"x": [""]}}
    }
    assert world.api.post(f"issues/{issue}/comments", {"content": "c\x00d"}).json()["content"] == "cd"


def test_a_partial_update_changes_what_it_names_and_null_clears(world: World) -> None:
    issue = world.issue(description="d", priority="low", due_date="2026-02-03", stage=2, status="backlog")
    path = f"issues/{issue.id}"
    assert world.api.put(path, {"priority": "urgent"}).json()["due_date"] == "2026-02-03"
    cleared = world.api.put(
        path, {"description": None, "priority": None, "due_date": None, "stage": None, "start_date": None}
    ).json()
    assert (cleared["description"], cleared["priority"], cleared["due_date"], cleared["stage"]) == (
        "",
        "none",
        None,
        None,
    )
    assert cleared["title"] == issue.title
    for field in ("title", "status"):
        refused = world.api.put(path, {field: None})
        assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert world.api.put(path, {}).status_code == 200
    assert world.api.put(path, {"due_date": "2026-02-03T10:00:00Z"}).json()["due_date"] == "2026-02-03"


def test_an_open_issue_with_the_same_title_is_a_duplicate(world: World, other: World) -> None:
    first = world.issue(title="Upgrade Django")
    again = world.api.post("issues", {"title": " upgrade django "})
    assert again.status_code == 409
    assert again.json()["code"] == "active_duplicate_issue"
    assert first.identifier in again.json()["error"]
    assert other.api.post("issues", {"title": "Upgrade Django"}).status_code == 201
    assert world.api.post("issues", {"title": "Upgrade Django", "allow_duplicate": True}).json()["number"] == 2
    Issue.objects.filter(workspace=world.workspace).update(status="done")
    assert world.api.post("issues", {"title": "Upgrade Django"}).json()["number"] == 3


def test_an_issue_is_never_below_itself(world: World) -> None:
    top = world.issue()
    middle = world.issue(parent_issue_id=str(top.id))
    bottom = world.issue(parent_issue_id=str(middle.id))
    for above in (top, bottom):
        answer = world.api.put(f"issues/{top.id}", {"parent_issue_id": str(above.id)})
        assert (answer.status_code, answer.json()["field"]) == (400, "parent_issue_id")
    children = world.api.get(f"issues/{top.id}/children").json()["issues"]
    assert [child["id"] for child in children] == [str(middle.id)]
    assert world.api.put(f"issues/{middle.id}", {"parent_issue_id": None}).json()["parent_issue_id"] is None


def test_lists_filter_sort_and_page(world: World) -> None:
    low = world.issue(priority="low", title="b")
    high = world.issue(priority="urgent", title="a", status="in_progress")
    world.api.put(f"issues/{low.id}/metadata/team", {"value": "core"})

    def titles(**query: Any) -> list[str]:
        answer = world.api.get("issues", **query)
        assert answer.status_code == 200, answer.content
        return [issue["title"] for issue in answer.json()["issues"]]

    assert titles() == ["a", "b"]
    assert titles(sort="priority", direction="asc") == ["b", "a"]
    assert titles(sort="title", direction="asc", limit=1, offset=1) == ["b"]
    assert titles(status="in_progress,done") == ["a"]
    assert titles(priority="low") == ["b"]
    assert titles(metadata='{"team": "core"}') == titles(metadata="team=core") == ["b"]
    assert titles(assignee_id=str(uuid4())) == []
    assert titles(nonsense="1") == ["a", "b"]
    assert world.api.get("issues", limit=1).json()["total"] == 2
    for name, value in (("limit", "x"), ("offset", "-1"), ("sort", "secret"), ("assignee_id", "me"), ("metadata", "x")):
        answer = world.api.get("issues", **{name: value})
        assert (answer.status_code, answer.json()["field"]) == (400, name)
    hits = world.api.get("issues/search", q=high.identifier).json()["issues"]
    assert [(hit["identifier"], hit["match_source"]) for hit in hits] == [("MUL-2", "identifier")]
    assert world.api.get("issues/search", q="%").json() == {"issues": []}


def test_a_list_costs_the_same_statements_for_any_number_of_issues(world: World) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert world.api.get("issues").status_code == 200
        return len(seen)

    world.issue()
    world.api.get("issues")
    one = cost()
    for _ in range(10):
        world.issue(assignee_type="agent", assignee_id=str(world.agent.id), suppress_run=True)
    assert cost() == one


def test_metadata_keys_are_set_and_removed_alone(world: World) -> None:
    issue = world.issue()
    path = f"issues/{issue.id}/metadata"
    assert world.api.put(f"{path}/a", {"value": None}).json() == {"metadata": {"a": None}}
    assert world.api.put(f"{path}/b", {"value": [1]}).json() == {"metadata": {"a": None, "b": [1]}}
    assert world.api.delete(f"{path}/a").json() == world.api.delete(f"{path}/a").json() == {"metadata": {"b": [1]}}
    assert world.api.get(path).json() == {"metadata": {"b": [1]}}
    assert world.api.put(f"{path}/c", {}).json()["field"] == "value"


def test_somebody_in_two_workspaces_says_which(world: World) -> None:
    second = factories.make_workspace(world.owner)
    both = Api(person_token(world.owner))
    assert both.post("issues", {"title": "x"}).json()["field"] == "workspace_id"
    for workspace in (world.workspace, second):
        assert both.post("issues", {"title": "x", "workspace_id": str(workspace.id)}).status_code == 201
    assert both.get("issues/MUL-1").json()["field"] == "workspace_id"
    named = Api(both.token, {"X-Workspace-ID": str(second.id)})
    assert named.get("issues/MUL-1").json()["workspace_id"] == str(second.id)
    assert named.post("issues", {"title": "y"}).json()["number"] == 2
    bound = Api(person_token(world.owner, world.workspace))
    assert bound.get("issues/MUL-1").json()["workspace_id"] == str(world.workspace.id)
    assert bound.post("issues", {"title": "z", "workspace_id": str(second.id)}).status_code == 404


def test_only_admins_delete_an_issue(world: World) -> None:
    issue = world.issue()
    member = factories.make_user()
    Member.objects.create(workspace=world.workspace, user=member)
    assert Api(person_token(member)).delete(f"issues/{issue.id}").status_code == 403
    assert world.api.delete(f"issues/{issue.id}").status_code == 200
    assert world.api.get(f"issues/{issue.id}").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_numbers_have_no_gaps_and_no_twins_under_concurrency() -> None:
    """Forty creations on eight connections, a third of them refused: the numbers are 1..n all the same."""
    world = make_world()
    answers: list[int] = []
    start = threading.Barrier(8)

    def create(worker: int) -> None:
        try:
            start.wait(20)
            for index in range(5):
                title = "the same" if index % 3 == 0 else f"{worker}/{index}"
                answers.append(world.api.post("issues", {"title": title}).status_code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=create, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    numbers = sorted(Issue.objects.filter(workspace=world.workspace).values_list("number", flat=True))
    assert numbers == list(range(1, len(numbers) + 1))
    assert sorted(set(answers)) == [201, 409]
    assert answers.count(201) == len(numbers) == 8 * 3 + 1
