"""A result with what it means to the issue, and the words that came meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from queue_app import transitions
from queue_app.errors import ConflictError, StaleClaimError
from queue_app.models import AgentTask, Comment, Issue
from queue_app.services import complete, route_comment
from queue_app.transitions import Report
from tests.support import lifecycle
from tests.support.lifecycle import Site, row_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def site() -> Site:
    return Site()


def say(site: Site, text: str, **fields: Any) -> Comment:
    values = {"author_type": "member", "author_id": site.owner.id, "created_at": timezone.now(), **fields}
    return Comment.objects.create(workspace=site.workspace, issue=site.issue, content=text, **values)


def done(site: Site, task: AgentTask, output: str = "", **more: Any) -> AgentTask:
    values = {"claim_token": task.claim_token, "result": {"output": output}, **more}
    return complete.complete(site.caller, task.id, **values)


def agents_words() -> list[str]:
    return list(Comment.objects.filter(author_type="agent").order_by("id").values_list("content", flat=True))


def test_the_result_is_the_rows_and_the_last_words_are_the_agents(site: Site) -> None:
    """Q-04, Q-11: the whole body is kept, the session too, and the agent's words stand on its issue."""
    task = site.running()
    body = {"output": "I fixed it.", "pr_url": "https://git.example/1"}
    row = done(site, task, result=body, report=Report(session_id="s-1", work_dir="/w", branch_name="agent/x"))
    assert (row.status, row.result, row.session_id, row.branch_name) == ("completed", body, "s-1", "agent/x")
    comment = Comment.objects.get()
    assert (comment.author_type, comment.author_id, comment.content) == ("agent", site.agent.id, "I fixed it.")
    assert Issue.objects.get(id=site.issue.id).first_executed_at is not None


def test_the_issues_status_is_never_touched(site: Site) -> None:
    """D5, protocol 5.6: the agent moves its issue, the server does not."""
    before = Issue.objects.get(id=site.issue.id).status
    done(site, site.running(), "all good")
    assert Issue.objects.get(id=site.issue.id).status == before


def test_an_agent_that_spoke_is_not_repeated(site: Site) -> None:
    """A comment of its own since the start stands for its output."""
    task = site.running()
    say(site, "see above", author_type="agent", author_id=site.agent.id, source_task_id=task.id)
    done(site, task, "see above, again")
    assert agents_words() == ["see above"]


@pytest.mark.parametrize("output", ["", "  \n", None, 7, "\x00"])
def test_nothing_to_say_is_not_said(site: Site, output: Any) -> None:
    done(site, site.running(), result={"output": output})
    assert agents_words() == []


def test_a_bare_reply_to_a_comment_is_dropped_and_other_words_join_its_thread(site: Site) -> None:
    root = say(site, "please look", created_at=timezone.now() - timedelta(minutes=1))
    reply = say(site, "and this", parent=root)
    done(site, site.running(kind="comment", trigger_comment_id=reply.id, delivered_comment_ids=[reply.id]), "Done.")
    assert agents_words() == []
    done(
        site,
        site.running(kind="comment", trigger_comment_id=reply.id, delivered_comment_ids=[reply.id]),
        "It was the cache.",
    )
    assert Comment.objects.get(author_type="agent").parent_id == root.id


def test_long_and_secret_output_is_cut_and_masked(site: Site) -> None:
    """D18: the task keeps everything, the comment a bounded and redacted part."""
    output = "token mul_0123456789abcdef " + "y" * 9000
    row = done(site, site.running(), output)
    assert row.result == {"output": output}
    (content,) = agents_words()
    assert len(content) < 8100
    assert "mul_0123" not in content
    assert content.endswith("the whole text)")


def test_a_repeat_changes_nothing(site: Site) -> None:
    """Protocol 5.5: 200, row unchanged, no second comment, no follow-up."""
    task = site.running()
    done(site, task, "once")
    before = row_of(task)
    assert done(site, task, "once").status == "completed"
    assert row_of(task) == before
    assert agents_words() == ["once"]


def test_another_delivery_and_an_unstarted_row_are_refused(site: Site) -> None:
    """L-11, Q-07: complete only ends a running row of its own delivery."""
    task = lifecycle.dispatch(site.queued())
    with pytest.raises(ConflictError):
        done(site, task, "early")
    with pytest.raises(StaleClaimError):
        done(site, lifecycle.start(task), "old", claim_token=uuid4())
    assert AgentTask.objects.get(id=task.id).status == "running"


@pytest.mark.parametrize(
    "notice", ["Prompt is too long", "Error: context window exceeded.", "prompt is too long · run /compact"]
)
def test_a_bare_context_notice_is_a_failure(site: Site, notice: str) -> None:
    """S-08: it fails as what it is, and its session is never resumed."""
    row = done(site, site.running(), notice)
    assert (row.status, row.failure_reason) == ("failed", "agent_error.context_overflow")


def test_words_about_context_are_a_result(site: Site) -> None:
    row = done(site, site.running(), "The prompt is too long error no longer occurs; I split the file.")
    assert row.status == "completed"


# ------------------------------------------------------------------------------------------------------- follow-ups


def open_tasks(site: Site) -> list[AgentTask]:
    rows = AgentTask.objects.filter(issue_id=site.issue.id, status__in=["queued", "deferred"])
    return list(rows.order_by("created_at", "id"))


def words_of(tasks: list[AgentTask]) -> set[UUID | None]:
    return {comment for task in tasks for comment in (task.trigger_comment_id, *task.coalesced_comment_ids)} - {None}


def test_comments_that_missed_the_run_make_exactly_one_follow_up(site: Site) -> None:
    """LOST-05, Q-15: whatever was neither delivered nor planned elsewhere is in one new task."""
    task = site.running()
    late = [say(site, word) for word in ("alpha", "bravo", "charlie")]
    done(site, task, "finished")
    (follow,) = open_tasks(site)
    assert words_of([follow]) == {comment.id for comment in late}
    assert follow.trigger_comment_id == late[-1].id
    assert (follow.originator_user_id, follow.trigger_evidence_kind) == (site.owner.id, "comment")


def test_what_was_delivered_is_not_replayed(site: Site) -> None:
    """Q-10: the receipt decides."""
    comment = say(site, "alpha")
    task = lifecycle.dispatch(site.queued(kind="comment", trigger_comment_id=comment.id))
    assert task.claim_token is not None
    transitions.record_delivery(task.id, claim_token=task.claim_token, comment_ids=[comment.id])
    done(site, lifecycle.start(task), "ok then")
    assert open_tasks(site) == []


def test_what_was_planned_and_not_delivered_is_replayed(site: Site) -> None:
    """Q-10, Q-15: a comment that did not fit into the answer gets its task."""
    first, second = say(site, "alpha"), say(site, "bravo")
    task = site.queued(kind="comment", trigger_comment_id=second.id, coalesced_comment_ids=[first.id])
    task = lifecycle.dispatch(task)
    assert task.claim_token is not None
    transitions.record_delivery(task.id, claim_token=task.claim_token, comment_ids=[second.id])
    done(site, lifecycle.start(task), "half")
    assert words_of(open_tasks(site)) == {first.id}


def test_a_delivery_without_receipts_does_not_spin(site: Site) -> None:
    """Nothing spins: without a receipt the plan counts as delivered, and no comment is planned for ever."""
    comment = say(site, "alpha", created_at=timezone.now() - timedelta(minutes=1))
    done(site, site.running(kind="comment", trigger_comment_id=comment.id), "hm")
    assert open_tasks(site) == []


def test_a_successor_that_has_the_words_is_enough(site: Site) -> None:
    """DUP-06: the comment's own task waits already; no second one is made."""
    task = site.running()
    comment = say(site, "alpha")
    outcome = route_comment.on_comment(comment, site.caller)
    assert outcome is not None
    assert outcome.outcome == "queued"
    done(site, task, "finished")
    (successor,) = open_tasks(site)
    assert successor.id == (outcome.task and outcome.task.id)


def test_five_comments_at_any_time_reach_a_prompt_once_each(site: Site) -> None:
    """LOST-05: while queued, about to start, running; all plans together hold each word once."""
    words: list[Comment] = []

    def speak(text: str) -> None:
        words.append(say(site, text))
        outcome = route_comment.on_comment(words[-1], site.caller)
        assert outcome is not None
        assert outcome.outcome in ("queued", "coalesced")

    speak("alpha")
    speak("bravo")
    (task,) = open_tasks(site)
    task = lifecycle.dispatch(task)
    assert task.claim_token is not None
    got = [task.trigger_comment_id, *task.coalesced_comment_ids]
    transitions.record_delivery(task.id, claim_token=task.claim_token, comment_ids=[c for c in got if c])
    speak("charlie")
    speak("delta")
    task = lifecycle.start(task)
    speak("echo")
    done(site, task, "one")
    plans = [*got]
    (successor,) = open_tasks(site)
    assert successor.status == "queued"
    plans += [successor.trigger_comment_id, *successor.coalesced_comment_ids]
    assert sorted(str(c) for c in plans if c) == sorted(str(word.id) for word in words)


def test_an_issue_that_went_to_somebody_else_gets_no_follow_up(site: Site) -> None:
    """Q-23: only the present assignee goes on."""
    task = site.running()
    say(site, "alpha")
    Issue.objects.filter(id=site.issue.id).update(assignee_id=uuid4())
    done(site, task, "finished")
    assert open_tasks(site) == []


def test_the_servers_and_the_agents_own_words_start_nothing(site: Site) -> None:
    """D5: neither a system comment nor the agent's own leads to a run."""
    task = site.running()
    say(site, "noted", author_type="system", author_id=None, type="system")
    say(site, "working on it", author_type="agent", author_id=site.agent.id, source_task_id=task.id)
    done(site, task, "finished")
    assert open_tasks(site) == []
