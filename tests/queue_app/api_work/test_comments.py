"""Comments: threads, the parameters of their reading, who may write and delete."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from queue_app.models import Comment, Issue, Member
from tests.queue_app.api_work.conftest import Api, World, person_token
from tests.support import factories

pytestmark = pytest.mark.django_db


def add(world: World, issue: Issue, content: str, parent: str | None = None) -> str:
    made = world.api.post(f"issues/{issue.id}/comments", {"content": content, "parent_id": parent})
    assert made.status_code == 201, made.content
    return str(made.json()["id"])


def read(world: World, issue: Issue, **query: Any) -> list[str]:
    answer = world.api.get(f"issues/{issue.id}/comments", **query)
    assert answer.status_code == 200, answer.content
    return [comment["content"] for comment in answer.json()]


@pytest.fixture
def issue(world: World) -> Issue:
    return world.issue()


def test_a_comment_carries_its_author_and_place(world: World, issue: Issue) -> None:
    root = world.api.post(f"issues/{issue.identifier}/comments", {"content": "hello", "attachment_ids": []}).json()
    assert (root["author_type"], root["author_id"]) == ("member", str(world.owner.id))
    assert (root["issue_id"], root["parent_id"], root["type"]) == (str(issue.id), None, "comment")
    assert (root["reply_count"], root["thread_resolved"], root["attachments"]) == (0, False, [])
    reply = world.api.post(f"issues/{issue.id}/comments", {"content": "r", "parent_id": root["id"]}).json()
    deeper = world.api.post(f"issues/{issue.id}/comments", {"content": "rr", "parent_id": reply["id"]}).json()
    assert reply["parent_id"] == deeper["parent_id"] == root["id"]


@pytest.mark.parametrize("body", [{}, {"content": ""}, {"content": " \n"}, {"content": 5}, {"content": "\x00"}])
def test_an_empty_comment_is_refused(world: World, issue: Issue, body: Any) -> None:
    answer = world.api.post(f"issues/{issue.id}/comments", body)
    assert (answer.status_code, answer.json()["field"]) == (400, "content")


def test_a_parent_of_another_issue_is_refused(world: World, issue: Issue) -> None:
    foreign = add(world, world.issue(), "elsewhere")
    for parent in (foreign, str(uuid4())):
        answer = world.api.post(f"issues/{issue.id}/comments", {"content": "x", "parent_id": parent})
        assert (answer.status_code, answer.json()["field"]) == (400, "parent_id")


def test_threads_can_be_read_whole_in_part_and_folded(world: World, issue: Issue) -> None:
    first = add(world, issue, "first")
    second = add(world, issue, "second")
    for number in range(3):
        add(world, issue, f"reply {number}", first)
    assert read(world, issue) == ["first", "second", "reply 0", "reply 1", "reply 2"]
    assert read(world, issue, roots_only="true") == ["first", "second"]
    reply = str(Comment.objects.get(content="reply 1").id)
    for member in (first, reply):
        assert read(world, issue, thread=member) == ["first", "reply 0", "reply 1", "reply 2"]
    assert read(world, issue, thread=first, tail=1) == ["first", "reply 2"]
    assert read(world, issue, recent=1) == ["first", "reply 0", "reply 1", "reply 2"]
    assert read(world, issue, tail=2) == ["reply 1", "reply 2"]
    world.api.post(f"comments/{reply}/resolve")
    assert read(world, issue, fold="true") == ["first", "second"]
    root = world.api.get(f"issues/{issue.id}/comments", fold="true", roots_only="true").json()[0]
    assert (root["thread_resolved"], root["reply_count"], root["resolved_at"] is not None) == (True, 3, True)
    assert world.api.get(f"issues/{issue.id}/comments", fold="true").json()[0]["folded_count"] == 3
    world.api.delete(f"comments/{first}/resolve")
    assert len(read(world, issue, fold="true")) == 5
    assert world.api.get(f"issues/{issue.id}/comments", thread=str(uuid4())).status_code == 404
    assert second in [c["id"] for c in world.api.get(f"issues/{issue.id}/comments").json()]


def test_older_pages_are_reached_by_the_headers(world: World, issue: Issue) -> None:
    for number in range(5):
        add(world, issue, str(number))
    for query in ({"tail": 2}, {"roots_only": "true", "recent": 2}):
        seen: list[str] = []
        cursor: dict[str, str] = {}
        for _ in range(4):
            answer = world.api.get(f"issues/{issue.id}/comments", **query, **cursor)
            seen = [comment["content"] for comment in answer.json()] + seen
            if "X-Multica-Next-Before" not in answer.headers:
                break
            cursor = {
                "before": answer.headers["X-Multica-Next-Before"],
                "before_id": answer.headers["X-Multica-Next-Before-Id"],
            }
        assert seen == ["0", "1", "2", "3", "4"]


def test_since_gives_what_is_newer(world: World, issue: Issue) -> None:
    add(world, issue, "old")
    mark = world.api.get(f"issues/{issue.id}/comments").json()[0]["created_at"]
    add(world, issue, "new")
    assert read(world, issue, since=mark) == ["new"]
    assert read(world, issue, since=mark, roots_only="true") == ["new"]


def test_unknown_parameters_are_tolerated_and_bad_values_named(world: World, issue: Issue) -> None:
    add(world, issue, "x" * 1000)
    assert read(world, issue, colour="red", limit="many") == ["x" * 1000]
    summary = world.api.get(f"issues/{issue.id}/comments", summary="true").json()[0]
    assert len(summary["content"]) < 300
    assert summary["content_truncated"] is True
    for name, value in (("since", "yesterday"), ("thread", "1"), ("tail", "-1"), ("recent", "x"), ("before_id", "x")):
        answer = world.api.get(f"issues/{issue.id}/comments", **{name: value})
        assert (answer.status_code, answer.json()["field"]) == (400, name)


def test_a_reading_costs_the_same_for_any_number_of_threads(world: World, issue: Issue) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert world.api.get(f"issues/{issue.id}/comments", fold="true").status_code == 200
        return len(seen)

    add(world, issue, "r", add(world, issue, "one"))
    cost()
    one = cost()
    for number in range(6):
        add(world, issue, "r", add(world, issue, str(number)))
    assert cost() == one


def test_who_may_delete(world: World, issue: Issue) -> None:
    member = factories.make_user()
    Member.objects.create(workspace=world.workspace, user=member)
    api = Api(person_token(member))
    theirs = api.post(f"issues/{issue.id}/comments", {"content": "mine"}).json()["id"]
    owners = add(world, issue, "owner's")
    assert api.delete(f"comments/{owners}").status_code == 403
    add(world, issue, "answer", theirs)
    assert api.delete(f"comments/{theirs}").status_code == 409
    assert world.api.delete(f"comments/{theirs}").status_code == 200
    assert read(world, issue) == ["owner's"]
    assert world.api.delete(f"comments/{theirs}").status_code == 404


def test_comments_of_another_workspace_are_missing(world: World, other: World, issue: Issue) -> None:
    comment = add(world, issue, "secret")
    for verb, path in (("GET", ""), ("DELETE", ""), ("POST", "/resolve"), ("DELETE", "/resolve")):
        assert other.api.call(verb, f"comments/{comment}{path}").status_code == 404
    assert Comment.objects.get(id=comment).resolved_at is None


def test_an_author_changes_the_words(world: World, other: World, issue: Issue) -> None:
    """The new words are read and say whom they started; others may not, and another workspace does not see it."""
    comment = add(world, issue, "old")
    answer = world.api.put(f"comments/{comment}", {"content": f"@{world.agent.name} new"})
    assert (answer.status_code, answer.json()["content"]) == (200, f"@{world.agent.name} new")
    (run,) = answer.json()["runs"]
    assert (run["agent_id"], run["why"], run["outcome"]) == (str(world.agent.id), "mention", "queued")
    assert answer.json()["run"]["task_id"] == run["task_id"]
    member = factories.make_user()
    Member.objects.create(workspace=world.workspace, user=member)
    assert Api(person_token(member)).put(f"comments/{comment}", {"content": "mine"}).status_code == 403
    assert other.api.put(f"comments/{comment}", {"content": "mine"}).status_code == 404
    assert world.api.put(f"comments/{comment}", {"content": " "}).status_code == 400
