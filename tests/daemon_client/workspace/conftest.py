"""Real git repositories, and a user whose home must come out of every test as it went in."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon_client.config import DaemonSettings, RuntimeInfo
from daemon_client.protocol import ClaimedTask

TASK = "6f0c2d1e-9b3a-4c57-8f21-{:012x}"


def make_task(number: int = 1, /, **changes: Any) -> ClaimedTask:
    """A delivered task of the agent "My Agent" on issue `issue-1`; `raw` takes the fields that are not decoded."""
    agent = {"id": "agent-1", "name": "My Agent", "instructions": "Be brief."}
    raw = {
        "id": TASK.format(number),
        "agent_id": "agent-1",
        "runtime_id": "runtime-1",
        "workspace_id": "ws-1",
        "issue_id": "issue-1",
        "auth_token": "mat_" + "0123456789abcdef" * 2,
        "agent": agent | dict(changes.pop("agent", {})),
    }
    return ClaimedTask.decode(raw | changes)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's home with a git identity and a Claude Code setup."""
    folder = tmp_path / "home"
    (folder / ".claude" / "skills" / "mine").mkdir(parents=True)
    (folder / ".gitconfig").write_text("[user]\n\tname = A Person\n\temail = person@example.org\n")
    (folder / ".claude" / "settings.json").write_text('{"model": "their-model"}')
    (folder / ".claude" / "CLAUDE.md").write_text("my own rules\n")
    (folder / ".claude" / ".credentials.json").write_text('{"claudeAiOauth": {}}')
    (folder / ".claude" / "skills" / "mine" / "SKILL.md").write_text("---\nname: mine\ndescription: x\n---\n")
    (folder / ".claude.json").write_text('{"userID": "u", "mcpServers": {"m": {}}, "history": ["private"]}')
    return folder


@pytest.fixture
def environ(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}


@pytest.fixture
def settings(tmp_path: Path, environ: dict[str, str]) -> DaemonSettings:
    return DaemonSettings(
        "http://127.0.0.1:1",
        "mul_secret",
        "d",
        workspaces_root=tmp_path / "workspaces",
        agent_temp_base=str(tmp_path),
        environ=environ,
    )


@pytest.fixture
def runtime() -> RuntimeInfo:
    return RuntimeInfo("runtime-1", "ws-1", "claude")


@pytest.fixture
def plain(runtime: RuntimeInfo) -> RuntimeInfo:
    return replace(runtime, provider="plain")


Git = Callable[..., str]


@pytest.fixture
def git(environ: dict[str, str]) -> Git:
    """`git(folder, "commit", …)` as the user; the output without blanks around it."""

    def run(folder: Path, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def remote(tmp_path: Path, git: Git) -> Path:
    """A repository with two commits on `trunk`, a branch `feature/x` and a tag `v1`; it allows partial clones."""
    work = tmp_path / "origin-work"
    work.mkdir()
    git(work, "init", "--quiet", "-b", "trunk")
    for number in (1, 2):
        (work / "file.txt").write_text(f"version {number}\n")
        git(work, "add", ".")
        git(work, "commit", "--quiet", "-m", f"commit {number}")
        if number == 1:
            git(work, "tag", "v1")
            git(work, "branch", "feature/x")
    bare = tmp_path / "remotes" / "team" / "project.git"
    bare.parent.mkdir(parents=True)
    git(tmp_path, "clone", "--quiet", "--bare", str(work), str(bare))
    git(bare, "config", "uploadpack.allowFilter", "true")
    git(bare, "config", "uploadpack.allowAnySHA1InWant", "true")
    return bare


def fingerprint(folder: Path) -> dict[str, str]:
    """Every path below a folder with its content, link target, mode and time of change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        digest = hashlib.sha256(content).hexdigest()
        found[str(path.relative_to(folder))] = (
            f"{digest} {status.st_mode:o} {status.st_mtime_ns if path.is_file() else 0}"
        )
    return found
