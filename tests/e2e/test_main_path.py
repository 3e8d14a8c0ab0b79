"""From an issue to its result, with nothing in the way."""

from __future__ import annotations

import subprocess

from tests.e2e.desk import CLAUDE, PLAIN, Desk
from tests.support.waits import Stopwatch, until


def test_assigned_issue_becomes_a_commit_messages_usage_and_a_comment(desk: Desk) -> None:
    """Q-04, EX-02, EX-05, RP-07, RP-10, S-01, S-02, T-03, T-07; the agent holds its own task's token and no other."""
    repository = desk.repository()
    daemon = desk.daemon()
    agent = desk.agent(CLAUDE, instructions="Work with care.")
    issue = desk.issue(agent, title="Add a line", description="One more line in file.txt")
    task = desk.task_of(issue["id"])
    launch = desk.hub.wait(task)
    row = desk.wait_status(task, "running")

    assert launch.env["MULTICA_TOKEN"].startswith("mat_")
    assert desk.account.token not in str(launch.hello)
    assert issue["id"] in launch.hello["prompt"]
    launch.say("looking at the repository")
    until(lambda: "looking at the repository" in desk.said(task), what="messages arrive while the agent runs")
    until(lambda: desk.row(task)["session_id"] == f"session-{task}", what="the session is pinned while it runs")
    assert desk.row(task)["status"] == "running"

    assert "Add a line" in launch.sh(f"multica issue get {issue['id']} --output json")
    launch.sh(f"multica issue status {issue['id']} in_progress")
    launch.sh(f"multica repo checkout file://{repository}")
    tree = launch.sh("dirname */file.txt").strip()
    launch.sh(f"cd {tree} && echo two >> file.txt && git commit -qam 'Add a line' && git push -q origin HEAD")
    branch = launch.sh(f"cd {tree} && git branch --show-current").strip()
    launch.finish("I added the line.")

    row = desk.wait_status(task, "completed")
    assert row["result"]["output"] == "I added the line."
    assert (row["attempt"], row["deliveries"]) == (1, 1)
    assert desk.events(task)[:3] == ["enqueue", "claim", "start"]
    log = subprocess.check_output(["git", "-C", str(repository), "log", "--format=%s", branch], text=True, timeout=20)
    assert log.splitlines() == ["Add a line", "first"]
    comments = [comment for comment in desk.comments(issue["id"]) if comment["author_type"] == "agent"]
    assert [comment["content"] for comment in comments] == ["I added the line."]
    usage = desk.site.query("SELECT * FROM task_usage WHERE task_id = %s", task)
    assert [(one["input_tokens"], one["output_tokens"]) for one in usage] == [(11, 7)]
    assert desk.api.get(f"/api/issues/{issue['id']}")["status"] == "in_progress"
    assert len(desk.hub.of(task)) == 1
    desk.wait_no_agents(daemon)


def test_second_run_of_an_issue_resumes_session_and_directory(desk: Desk) -> None:
    """Q-11, S-11 (clean: same directory, same session): a later task of one agent and issue goes on where it was."""
    desk.daemon()
    agent = desk.agent(CLAUDE)
    issue = desk.issue(agent)
    first = desk.hub.wait(desk.task_of(issue["id"]))
    first.sh("echo notes > notes.txt")
    first.finish("first part")
    desk.wait_status(first.task_id, "completed")

    desk.api.post(f"/api/issues/{issue['id']}/comments", {"content": "Now the second part, please"})
    tasks = until(lambda: desk.tasks_of(issue["id"])[1:], what="the comment makes a task")
    second = desk.hub.wait(str(tasks[0]["id"]))
    assert second.hello["resumed"] == f"session-{first.task_id}"
    assert second.sh("cat notes.txt").strip() == "notes"
    assert "Now the second part, please" in second.hello["prompt"]
    second.finish("second part")
    desk.wait_status(second.task_id, "completed")


def test_business_failure_is_final_and_says_why(desk: Desk) -> None:
    """R-01, R-09, R-18, RP-03; RETRY-03 (b): an agent that fails by itself is not run again."""
    desk.daemon()
    agent = desk.agent()
    issue = desk.issue(agent)
    launch = desk.hub.wait(desk.task_of(issue["id"]))
    launch.fail("error: compile failed in module x", code=1)
    row = desk.wait_status(launch.task_id, "failed")
    assert row["failure_reason"].startswith("agent_error.")
    assert "compile failed" in row["error"]
    assert desk.children(launch.task_id) == []
    assert row["not_retried_because"]
    assert any(comment["author_type"] == "system" for comment in desk.comments(issue["id"]))


def test_network_failure_of_the_provider_is_tried_again_by_rule(desk: Desk) -> None:
    """R-08, R-15, Q-12: a child row with its own attempt, error and messages; the parent stays failed."""
    desk.daemon()
    task, launch = desk.running(desk.agent())
    launch.say("first try")
    launch.fail("API Error: Connection error. getaddrinfo ENOTFOUND api.example.test")
    desk.wait_status(task, "failed")
    child = until(lambda: desk.children(task), what="a child")[0]
    again = desk.hub.wait(str(child["id"]))
    again.finish("worked now")
    row = desk.wait_status(again.task_id, "completed")
    assert row["attempt"] == 2
    assert desk.row(task)["failure_reason"] == "agent_error.provider_network"
    assert "first try" in desk.said(task)
    assert "first try" not in desk.said(again.task_id)


def test_result_counts_although_a_child_keeps_the_output_open(desk: Desk) -> None:
    """STUCK-09: the end of the agent is the end of the run; what it left behind is ended."""
    daemon = desk.daemon()
    task, launch = desk.running(desk.agent())
    launch.do("leave_child")
    watch = Stopwatch()
    launch.finish("all done")
    row = desk.wait_status(task, "completed", seconds=15)
    assert watch.seconds < 15
    assert "all done" in row["result"]["output"]
    desk.wait_no_agents(daemon)


def test_idle_polls_ask_the_database_nothing_and_new_work_runs_within_a_second(desk: Desk) -> None:
    """E-01, P-07, P-11: polls with a warm verdict run no statement at the claim's door, and the hint beats the poll.

    Polls are 2 s apart here and each task is filed right after one, so a start within a second comes from the hint.
    """
    desk.daemon(MULTICA_DAEMON_POLL_INTERVAL="40s")
    agent = desk.agent()
    quiet = [after_a_poll(desk) for _ in range(3)]
    for _ in range(3):  # one look more than needed is allowed after each change (E-06)
        if quiet[-3] == quiet[-2] == quiet[-1]:
            break
        quiet.append(after_a_poll(desk))
    assert quiet[-3] == quiet[-2] == quiet[-1], "idle polls reached the database"
    assert quiet[-1], "the claim's door has sessions"
    took = []
    for _ in range(3):
        task, launch = desk.running(agent)
        row = desk.row(task)
        took.append((row["started_at"] - row["created_at"]).total_seconds())
        before = desk.claims()
        launch.finish("done")
        desk.wait_status(task, "completed")
        until(lambda before=before: desk.claims() > before, 8, "a poll after the end")
    assert sorted(took)[1] < 1.0, took


def after_a_poll(desk: Desk) -> list[dict[str, object]]:
    """Waits for the next claim request and its answer; then when each session of the claim's door began a statement."""
    before = desk.answers()
    until(lambda: desk.answers() > before, 8, "a poll is answered")
    return claim_sessions(desk)


def claim_sessions(desk: Desk) -> list[dict[str, object]]:
    """When each session of the claim's door last began a statement."""
    look = """SELECT pid, query_start, query FROM pg_stat_activity
              WHERE application_name = 'multica-claim' AND datname = current_database() ORDER BY pid"""
    return desk.site.query(look)


def test_profile_is_offered_while_the_daemon_runs_and_disturbs_no_run(desk: Desk) -> None:
    """W-15, O-03, EX-06, C-27: a command added in the workspace is a runtime at once, with its arguments."""
    desk.daemon()
    task, launch = desk.running(desk.agent())
    body = {
        "display_name": "Another command",
        "protocol_family": PLAIN,
        "command_name": str(desk.folder / "scripted-agent"),
        "fixed_args": ["--mode", "careful"],
    }
    made = desk.api.post(f"/api/workspaces/{desk.account.workspace_id}/runtime-profiles", body)
    desk.profiles["another"] = made["id"]
    other, second = desk.running(desk.agent("another"))
    assert second.hello["argv"][-2:] == ["--mode", "careful"]
    second.finish("by the new runtime")
    desk.wait_status(other, "completed")
    assert launch.alive
    launch.finish("undisturbed")
    desk.wait_status(task, "completed")
