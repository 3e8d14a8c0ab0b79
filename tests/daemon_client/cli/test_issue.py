"""`multica issue`: the requests it makes, what it prints, and how it fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.daemon_client.cli.conftest import TOKEN, Cli, Server

ISSUE = {"id": "i-1", "identifier": "ABC-1", "title": "Slow login", "status": "todo", "priority": "high", "extra": [1]}


@pytest.fixture(autouse=True)
def _known_issue(server: Server) -> None:
    server.on("GET", "/api/issues/ABC-1", ISSUE)
    server.on("PUT", "/api/issues/i-1", ISSUE)


def test_get_prints_the_servers_object(server: Server, cli: Cli) -> None:
    """JSON is passed on whole, unknown fields included; the call carries the task's identity."""
    code, out, _ = cli("issue", "get", "ABC-1", "--output", "json")
    assert (code, json.loads(out)) == (0, ISSUE)
    _, _, headers, _ = server.asked[0]
    sent = {
        name: headers[name]
        for name in ("Authorization", "X-Workspace-Id", "X-Agent-Id", "X-Task-Id", "X-Client-Platform")
    }
    assert list(sent.values()) == [f"Bearer {TOKEN}", "ws-1", "agent-1", "task-1", "cli"]
    assert "ABC-1  Slow login" in cli("issue", "get", "ABC-1")[1]


def test_list_is_a_table(server: Server, cli: Cli) -> None:
    server.on("GET", "/api/issues", {"issues": [ISSUE, ISSUE | {"identifier": "ABC-22", "title": "x\ny"}], "total": 7})
    code, out, err = cli("issue", "list", "--status", "in-progress", "--limit", "2")
    assert code == 0
    assert out.splitlines() == [
        "identifier  status  priority  title",
        "ABC-1       todo    high      Slow login",
        "ABC-22      todo    high      x y",
    ]
    assert "2 of 7" in err
    assert server.asked[0][1] == "/api/issues?workspace_id=ws-1&status=in_progress&limit=2"


def test_create_reads_long_texts_from_files(server: Server, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotes and line breaks arrive as written; a quick-create task says where the issue is from."""
    server.on("POST", "/api/issues", ISSUE, 201)
    text = 'line "one"\n$HOME `two`\n'
    Path("d.md").write_text(text)
    arguments = (
        "issue",
        "create",
        "--title",
        "T",
        "--description-file",
        "d.md",
        "--priority",
        "high",
        "--due-date",
        "2027-01-01",
    )
    assert cli(*arguments, "--parent", "ABC-1")[:2] == (0, "ABC-1 Slow login\n")
    monkeypatch.setenv("MULTICA_QUICK_CREATE_TASK_ID", "task-1")
    cli("issue", "create", "--title", "T", "--allow-duplicate")
    expected = {
        "title": "T",
        "description": text,
        "priority": "high",
        "due_date": "2027-01-01",
        "parent_issue_id": "i-1",
    }
    assert server.bodies("POST") == [
        expected,
        {"title": "T", "allow_duplicate": True, "origin_type": "quick_create", "origin_id": "task-1"},
    ]


def test_changes_are_partial_puts(server: Server, cli: Cli) -> None:
    """Only what was named is sent; `none` clears; the status of a key is set on its id."""
    assert cli("issue", "status", "ABC-1", "In-Review") == (0, "ABC-1 is now in_review\n", "")
    cli("issue", "status", "ABC-1", "todo", "--suppress-run")
    cli("issue", "update", "ABC-1", "--title", "New", "--due-date", "none", "--parent", "none")
    assert server.bodies("PUT") == [
        {"status": "in_review"},
        {"status": "todo", "suppress_run": True},
        {"title": "New", "due_date": None, "parent_issue_id": None},
    ]
    assert cli("issue", "update", "ABC-1")[0] == 1


def test_assign_by_name(server: Server, cli: Cli) -> None:
    """A name is looked up among people, agents and squads; several or none is an error; one source may be closed."""
    server.on("GET", "/api/workspaces/ws-1/members", [{"user_id": "u-1", "name": "Ann", "email": "ann@example.org"}])
    server.on("GET", "/api/agents", [{"id": "a-1", "name": "Builder"}, {"id": "a-2", "name": "Ann"}])
    server.on("GET", "/api/squads", {"error": "not found"}, 404)
    assert cli("issue", "assign", "ABC-1", "builder")[0] == 0
    assert cli("issue", "assign", "ABC-1", "--to", "ann@example.org")[0] == 0
    assert cli("issue", "assign", "ABC-1", "--unassign")[0] == 0
    assert server.bodies("PUT") == [
        {"assignee_type": "agent", "assignee_id": "a-1"},
        {"assignee_type": "member", "assignee_id": "u-1"},
        {"assignee_type": None, "assignee_id": None},
    ]
    assert "several are called" in cli("issue", "assign", "ABC-1", "Ann")[2]
    assert "nobody is called" in cli("issue", "assign", "ABC-1", "Zoe")[2]
    assert cli("issue", "assign", "ABC-1")[0] == 1


def test_comments(server: Server, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    server.on("POST", "/api/issues/i-1/comments", {"id": "c-1"}, 201)
    comments = [{"id": "c-1", "author_type": "agent", "author_id": "a", "content": "one\ntwo", "parent_id": "c-0"}]
    server.on("GET", "/api/issues/i-1/comments", comments)
    Path("c.md").write_text("long\ntext\n")
    assert cli("issue", "comment", "add", "ABC-1", "--content-file", "c.md", "--parent", "c-0")[0] == 0
    assert server.bodies("POST") == [{"content": "long\ntext\n", "parent_id": "c-0"}]
    assert "  two" in cli("issue", "comment", "list", "ABC-1", "--roots-only", "--summary")[1]
    assert server.asked[-1][1].endswith("?roots_only=true&summary=true")
    code, out, _ = cli("issue", "comment", "list", "ABC-1", "--output", "json")
    assert (code, json.loads(out)) == (0, comments)
    for arguments in (
        ["--content", " "],
        [],
        ["--content", "x", "--content-file", "c.md"],
        ["--content-file", "/no/such"],
    ):
        assert cli("issue", "comment", "add", "ABC-1", *arguments)[0] == 1


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (400, {"error": "title must not be empty"}, 5, "title must not be empty"),
        (422, {"detail": "status: unknown"}, 5, "status: unknown"),
        (401, {"error": "invalid token"}, 3, "does not accept the token"),
        (403, {"error": "agents may not"}, 3, "not allowed: agents may not"),
        (404, {"error": "issue not found"}, 4, "issue not found"),
        (409, {"code": "active_duplicate_issue", "error": "ABC-7 has this title"}, 1, "ABC-7 has this title"),
        (500, b"<html>", 1, "returned 500"),
        (302, b"", 1, "returned 302"),
        (200, b"<html>", 1, "not JSON"),
        (200, [1], 1, "not the object"),
    ],
)
def test_failures_say_what_is_wrong(server: Server, cli: Cli, status: int, body: object, code: int, words: str) -> None:
    """Each kind of refusal has its exit code and the server's own sentence; nothing is printed as an answer."""
    server.on("GET", "/api/issues/X-1", body, status, Location="/elsewhere")
    assert cli("issue", "get", "X-1")[:2] == (code, "")
    _, _, err = cli("issue", "get", "X-1")
    assert words in err
    assert TOKEN not in err


def test_no_server(cli: Cli, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTICA_SERVER_URL", "http://127.0.0.1:9")
    assert cli("issue", "get", "X-1")[0] == 2


def test_a_server_that_does_not_answer(cli: Cli, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call has a time limit, so that an agent never hangs on it."""
    monkeypatch.setenv("MULTICA_HTTP_TIMEOUT", "200ms")
    with __import__("socket").create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MULTICA_SERVER_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        code, _, err = cli("issue", "get", "X-1")
    assert (code, "cannot be reached" in err) == (2, True)


def test_inside_a_task_there_is_no_way_to_the_owners_login(
    cli: Cli, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the task's token nothing is sent, although the owner's is in the home, a profile, the variable."""
    login = json.dumps({"server_url": f"http://127.0.0.1:{server.port}", "token": "mul_of_the_owner"})
    for folder in ("home/.multica", "home/.multica/profiles/p", "config"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text(login)
    for token in ("mul_of_the_owner", ""):
        monkeypatch.setenv("MULTICA_TOKEN", token)
        assert cli("issue", "get", "ABC-1")[0] == 3
        assert cli("issue", "get", "ABC-1", "--profile", "p")[0] == 3
    for name in ("MULTICA_TASK_CONFIG_ROOT", "MULTICA_TASK_ID", "MULTICA_TOKEN"):
        monkeypatch.delenv(name)
    (tmp_path / ".multica").mkdir()
    (tmp_path / ".multica" / "daemon_task_context.json").write_text("{}")
    assert cli("issue", "get", "ABC-1")[0] == 3
    assert server.asked == []
    (tmp_path / ".multica" / "daemon_task_context.json").unlink()
    assert cli("issue", "get", "ABC-1")[0] == 0
    assert server.asked[0][2]["Authorization"] == "Bearer mul_of_the_owner"


@pytest.mark.parametrize(
    "arguments", [["get"], ["status", "ABC-1", "no such!"], ["create"], ["list", "--priority", "x"], []]
)
def test_wrong_usage(cli: Cli, server: Server, arguments: list[str]) -> None:
    code, _, err = cli("issue", *arguments)
    assert (code, "usage:" in err) == (2, True)
    assert server.asked == []


def test_it_imports_little() -> None:
    """An agent calls it dozens of times a task: neither the event loop nor an HTTP library is loaded."""
    import subprocess

    code = "import sys, daemon_client.__main__ as m; m.build_parser(['issue', 'repo']); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert {"asyncio", "aiohttp", "websockets", "msgspec", "psutil"}.isdisjoint(loaded.stdout.split())
