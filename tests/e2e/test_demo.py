"""`manage.py demo`: the whole product in one command, and its verdict that cannot be fooled."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from multica.demo import repository, show
from multica.demo.provider import Provider
from multica.demo.stories import NETWORK, TASK_FAILED, Run, Story, stories
from multica.management.commands.demo import judge
from tests.support import stack

LIMIT = 240


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A database and a state directory of the demo's own; byte code is kept, as it is on people's machines."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    with stack.private_database() as url:
        yield {
            **kept,
            "DATABASE_URL": url,
            "REDIS_URL": os.environ["MULTICA_TEST_REDIS_URL"],
            "MULTICA_CHANNEL_PREFIX": f"demo-{tmp_path.name}",
            "MULTICA_STATE_DIR": str(tmp_path / "state"),
            "PYTHONPYCACHEPREFIX": str(tmp_path / "pyc"),
        }


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "demo", *arguments],
        cwd=stack.CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT - 20,
        check=False,
    )


def survivors(state: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MULTICA_STATE_DIR", "").startswith(state):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.timeout(LIMIT)
def test_the_demo_ends_as_it_should_and_leaves_nothing_running(environment: dict[str, str]) -> None:
    """From an empty state directory: six stories, eight attempts, five commits, status 0, no process left."""
    done = run(environment, "--exit")
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    text = done.stdout
    assert len(re.findall(r"^[0-9a-f]{12}  DEMO-\d+ ", text, re.MULTILINE)) == 8
    assert len(re.findall(r"^agent/\S+  [0-9a-f]{7,} ", text, re.MULTILINE)) == 5
    for piece in (NETWORK, TASK_FAILED, "cancelled", "while the task runs", "/admin/   login: demo   password: "):
        assert piece in text
    assert survivors(environment["MULTICA_STATE_DIR"]) == []
    folder = Path(environment["MULTICA_STATE_DIR"]) / "demo" / "repository"
    assert repository.git(folder, "status", "--porcelain") == ""
    assert "slugify" in repository.git(folder, "log", "--all", "--format=%s")
    password = re.search(r"password: (\S+)", text)
    assert password is not None
    for log in (Path(environment["MULTICA_STATE_DIR"]) / "demo" / "log").iterdir():
        assert password[1] not in log.read_text("utf-8", "replace")


# --- the verdict ---------------------------------------------------------------------------------------------------


def attempt(status: str, **fields: Any) -> Run:
    values = {
        "id": "t1",
        "status": status,
        "failure_reason": None,
        "not_retried_because": None,
        "attempt": 1,
        "max_attempts": 2,
        "retry_of_task_id": None,
        "agent_name": "Ada",
        "started_at": "2026-01-01T00:00:01Z",
        "completed_at": "2026-01-01T00:00:05Z",
        "stopped_at": "2026-01-01T00:00:06Z",
    }
    return {**values, **fields}


def good() -> list[Story]:
    """All six, ended as they should."""
    filed = stories()
    second = attempt("completed", id="t2", started_at="2026-01-01T00:00:06Z", completed_at="2026-01-01T00:00:09Z")
    retried = [attempt("failed", failure_reason=NETWORK), {**second, "attempt": 2, "retry_of_task_id": "t1"}]
    endings = [
        [attempt("completed")],
        [attempt("completed"), second],
        [attempt("completed")],
        [attempt("failed", failure_reason=TASK_FAILED)],
        retried,
        [attempt("cancelled", failure_reason="cancelled")],
    ]
    for story, runs in zip(filed, endings, strict=True):
        story.runs = runs
    return filed


def test_a_good_ending_has_no_problems() -> None:
    assert judge(good(), 5) == []


@pytest.mark.parametrize(
    ("story", "runs"),
    [
        (0, []),
        (0, [attempt("running", completed_at=None)]),
        (0, [attempt("failed", failure_reason=TASK_FAILED)]),
        (1, [attempt("completed")]),
        (1, [attempt("completed"), attempt("completed", started_at="2026-01-01T00:00:04Z")]),
        (3, [attempt("completed")]),
        (3, [attempt("failed", failure_reason=NETWORK)]),
        (3, [attempt("failed", failure_reason=TASK_FAILED), attempt("completed")]),
        (4, [attempt("completed")]),
        (4, [attempt("failed", failure_reason=NETWORK), attempt("completed", attempt=2)]),
        (4, [attempt("failed", failure_reason=TASK_FAILED), attempt("completed", attempt=2, retry_of_task_id="t1")]),
        (5, [attempt("completed")]),
        (5, [attempt("cancelled", stopped_at=None)]),
    ],
)
def test_every_wrong_ending_is_a_problem(story: int, runs: list[Run]) -> None:
    filed = good()
    filed[story].runs = runs
    (problem,) = judge(filed, 5)
    assert filed[story].title in problem


def test_a_missing_commit_is_a_problem() -> None:
    assert judge(good(), 4) == ["5 commits should have been made, there are 4"]


# --- pieces ----------------------------------------------------------------------------------------------------------


def test_the_repository_starts_with_passing_tests_and_one_bug(tmp_path: Path) -> None:
    folder = repository.ensure(repository.ensure(tmp_path / "r"))
    assert list(repository.branches(folder)) == ["main"]
    tests = [sys.executable, "-m", "unittest", "-q"]
    assert subprocess.run(tests, cwd=folder, capture_output=True, check=False).returncode == 0
    bug = [sys.executable, "-c", "from textkit.words import word_count; print(word_count(''))"]
    assert subprocess.run(bug, cwd=folder, capture_output=True, text=True, check=False).stdout == "1\n"
    before = repository.branches(folder)
    repository.git(folder, "commit", "--quiet", "--allow-empty", "-m", "x")
    repository.git(folder, "branch", "agent/a")
    repository.git(folder, "reset", "--quiet", "--hard", "HEAD~1")
    (line,) = repository.new_commits(folder, before)
    assert line.startswith("agent/a  ")


def test_the_provider_cuts_the_first_connection_only() -> None:
    import socket

    def ask(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"?\n")
            return connection.recv(100)

    with Provider() as provider:
        with pytest.raises(ConnectionResetError):
            ask(provider.port)
        assert ask(provider.port) == ask(provider.port) == b"like this\n"


def test_control_characters_of_agents_do_not_reach_the_terminal() -> None:
    out = io.StringIO()
    show.Screen(out).live("DEMO-1", "Ada", "\x1b]0;owned\x07\x1b[2Jhello\rworld")
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("\n") == 1


def test_installed_agents_are_named_only_with_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    binaries = tmp_path / "bin"
    binaries.mkdir()
    monkeypatch.setenv("PATH", str(binaries))
    for name in ("claude", "codex"):
        (binaries / name).write_text("#!/bin/sh\n")
        (binaries / name).chmod(0o755)
    assert show.installed_agents(tmp_path) == []
    assert show.how_to_use([], "http://x") == []
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text("{}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    assert show.installed_agents(tmp_path) == ["claude", "codex"]
    assert "claude and codex are installed" in show.how_to_use(["claude", "codex"], "http://x")[0]
