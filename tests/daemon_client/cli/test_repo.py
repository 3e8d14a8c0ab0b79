"""`multica repo checkout`: asks the daemon of this machine, with the task's token alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daemon_client.cli import repo
from daemon_client.errors import DaemonError
from tests.daemon_client.cli.conftest import TOKEN, Cli, Server

BUSY = {"X_Multica_Retryable": "repo-busy", "Retry_After": "2"}
DONE = {"path": "/w/project", "branch_name": "agent/a/1"}


def test_it_prints_the_directory(server: Server, cli: Cli) -> None:
    """The directory alone is the answer, so a shell can use it; the daemon gets the place and the task's identity."""
    server.on("POST", "/repo/checkout", DONE)
    assert cli("repo", "checkout", "https://example.org/x", "--ref", "v1") == (
        0,
        "/w/project\n",
        "on branch agent/a/1\n",
    )
    _, _, headers, body = server.asked[0]
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert (body["url"], body["ref"], body["workdir"]) == ("https://example.org/x", "v1", str(Path.cwd()))
    assert (body["task_id"], body["workspace_id"], body["retry_busy"]) == ("task-1", "ws-1", True)
    assert json.loads(cli("repo", "checkout", "x", "--output", "json")[1]) == DONE


def test_a_busy_repository_is_asked_for_again(server: Server) -> None:
    """It waits as long as the daemon says, and gives up when its own time is over."""
    server.on("POST", "/repo/checkout", {"error": "in use"}, 503, **BUSY)
    server.on("POST", "/repo/checkout", {"error": "in use"}, 503, **BUSY)
    server.on("POST", "/repo/checkout", DONE)
    waits: list[float] = []
    assert repo.checkout(server.port, TOKEN, {}, wait=waits.append) == DONE
    assert waits == [2.0, 2.0]
    server.on("POST", "/repo/checkout", {"error": "in use"}, 503, **BUSY)
    server.answers[("POST", "/repo/checkout")] = server.answers[("POST", "/repo/checkout")][-1:]
    with pytest.raises(DaemonError, match="in use; given up after 1 s"):
        repo.checkout(server.port, TOKEN, {}, budget=1, wait=waits.append)


@pytest.mark.parametrize(("status", "code"), [(400, 5), (401, 3), (403, 3), (500, 1), (503, 1)])
def test_refusals(server: Server, cli: Cli, status: int, code: int) -> None:
    server.on("POST", "/repo/checkout", {"error": "repository x is not configured"}, status)
    assert cli("repo", "checkout", "x") == (code, "", "multica: repository x is not configured\n")


def test_no_daemon_and_no_task(server: Server, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token goes to nobody else: not through a proxy, not without a task."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("MULTICA_DAEMON_PORT", "9")
    assert cli("repo", "checkout", "x")[0] == 2
    assert server.asked == []
    monkeypatch.setenv("MULTICA_TOKEN", "mul_of_the_owner")
    assert cli("repo", "checkout", "x")[0] == 3
    monkeypatch.delenv("MULTICA_DAEMON_PORT")
    assert cli("repo", "checkout", "x")[0] == 1
