"""The directory and environment of a task: private, predictable, given back only to whom it belongs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from daemon_client import protocol
from daemon_client.agents.redact import Redactor
from daemon_client.config import DaemonSettings, RuntimeInfo
from daemon_client.protocol import ClaimedTask
from daemon_client.workspace import env_root, exec_env
from daemon_client.workspace.agent_env import ensure_command
from daemon_client.workspace.exec_env import Prepared, PrepareError
from daemon_client.workspace.repo_cache import RepoCache
from tests.daemon_client.workspace.conftest import Git, fingerprint, make_task
from tests.support.wait import until_async


async def prepare(task: ClaimedTask, settings: DaemonSettings, runtime: RuntimeInfo) -> Prepared:
    return await exec_env.prepare(
        task, settings=settings, runtime=runtime, daemon_port=4711, server_url="http://127.0.0.1:1", slot=3
    )


async def run_through(task: ClaimedTask, settings: DaemonSettings, runtime: RuntimeInfo) -> Prepared:
    prepared = await prepare(task, settings, runtime)
    await exec_env.finish(prepared, task, outcome="completed")
    return prepared


async def test_the_tree(settings: DaemonSettings, runtime: RuntimeInfo) -> None:
    """N-01, N-02, Y-07: the predicted place; workdir, tmp, config, output, logs; no code, private where it must be."""
    task = make_task(0xABC)
    prepared = await prepare(task, settings, runtime)
    assert prepared.root == env_root.predict(settings.workspaces_root, "ws-1", task.id)
    assert prepared.root == settings.workspaces_root / "ws-1" / "000000000abc"
    assert {"workdir", "tmp", "config", "output", "logs"} <= {path.name for path in prepared.root.iterdir()}
    assert (prepared.config_root.stat().st_mode & 0o777, prepared.tmpdir.stat().st_mode & 0o777) == (0o700, 0o700)
    assert {path.name for path in prepared.workdir.iterdir()} == {".multica", "CLAUDE.md"}
    prepared.release()


async def test_the_environment(settings: DaemonSettings, runtime: RuntimeInfo) -> None:
    """EX-02: the task's own token and identity, nothing of the daemon; the agent's entries without the blocked ones."""
    outer = dict(settings.environ) | {
        "MULTICA_TOKEN": "mul_of_the_owner", "MULTICA_ANYTHING": "x", "CLAUDECODE": "1",
        "CLAUDE_CODE_ENTRYPOINT": "cli",
        "CLAUDE_CODE_SSE_PORT": "1", "CLAUDE_CODE_USE_BEDROCK": "1", "GIT_DIR": "/somewhere", "KEPT": "yes",
    }  # fmt: skip
    custom = {
        "MODEL_KEY": "agents-own-key", "PATH": "/evil", "HOME": "/evil", "MULTICA_TOKEN": "mat_other",
        "TMPDIR": "/evil", "CLAUDE_CONFIG_DIR": "/evil", "bad name": "x", "NUL": "a\0b", "NUMBER": 5, "KEPT": "changed",
    }  # fmt: skip
    task = make_task(agent={"custom_env": custom})
    prepared = await prepare(task, replace(settings, environ=outer), runtime)
    env = prepared.env
    assert env["MULTICA_TOKEN"] == task.auth_token
    assert (env["MULTICA_TASK_ID"], env["MULTICA_AGENT_ID"], env["MULTICA_AGENT_NAME"]) == (
        task.id,
        "agent-1",
        "My Agent",
    )
    assert (env["MULTICA_DAEMON_PORT"], env["MULTICA_TASK_SLOT"], env["MULTICA_WORKSPACE_ID"]) == ("4711", "3", "ws-1")
    assert env["MULTICA_TASK_CONFIG_ROOT"] == str(prepared.config_root)
    assert {env[name] for name in ("TMPDIR", "TMP", "TEMP")} == {str(prepared.tmpdir)}
    assert env["HOME"] == settings.environ["HOME"]
    assert (env["KEPT"], env["MODEL_KEY"], env["CLAUDE_CODE_USE_BEDROCK"]) == ("changed", "agents-own-key", "1")
    gone = {
        "MULTICA_ANYTHING",
        "CLAUDECODE",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_SSE_PORT",
        "GIT_DIR",
        "NUL",
        "NUMBER",
    }
    assert gone.isdisjoint(env)
    assert "/evil" not in env.values()
    assert env["CLAUDE_CONFIG_DIR"] == str(prepared.root / "claude-home")
    assert "mul_" not in json.dumps(env)
    assert "agents-own-key" not in Redactor.for_env(env).text("it says agents-own-key")
    assert "agents-own-key" not in repr(prepared)
    prepared.release()


async def test_the_command_is_on_the_path_and_nothing_else_of_the_daemon(
    settings: DaemonSettings, runtime: RuntimeInfo
) -> None:
    """The agent finds `multica`; it knows the settings of the task; python is the machine's."""
    prepared = await prepare(make_task(), settings, runtime)
    first, _, rest = prepared.env["PATH"].partition(os.pathsep)
    assert (os.listdir(first), rest) == (["multica"], settings.environ["PATH"])
    done = await asyncio.to_thread(
        subprocess.run,
        ["multica", "issue", "get", "X-1"],
        env=prepared.env,
        cwd=prepared.workdir,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "http://127.0.0.1:1 cannot be reached" in done.stderr) == (2, True), done.stderr
    prepared.release()


async def test_git_identity(settings: DaemonSettings, runtime: RuntimeInfo, home: Path) -> None:
    """Commits carry the user's name; where the machine has none, the agent's, so that no commit fails for that."""
    assert "GIT_AUTHOR_NAME" not in (await run_through(make_task(1), settings, runtime)).env
    (home / ".gitconfig").unlink()
    env = (await run_through(make_task(2), settings, runtime)).env
    assert (env["GIT_AUTHOR_NAME"], env["GIT_COMMITTER_EMAIL"]) == ("My Agent", "my-agent@agents.invalid")


async def test_the_users_dot_directories_stay_as_they_are(
    settings: DaemonSettings, runtime: RuntimeInfo, home: Path
) -> None:
    """N-08: after 50 tasks everything below the home is byte for byte the same; the CLI has the user's setup."""
    before = fingerprint(home)
    for number in range(1, 51):
        prepared = await run_through(
            make_task(number, agent={"skills": [{"name": "s", "content": "x"}]}), settings, runtime
        )
    assert fingerprint(home) == before
    private = prepared.root / "claude-home"
    assert json.loads((private / "settings.json").read_text()) == {"model": "their-model"}
    assert (private / "skills" / "mine" / "SKILL.md").is_file()
    assert (private / ".credentials.json").resolve() == home / ".claude" / ".credentials.json"
    state = json.loads((private / ".claude.json").read_text())
    assert state == {"userID": "u", "mcpServers": {"m": {}}}


async def test_a_long_root_gets_a_short_temporary_directory(
    settings: DaemonSettings, runtime: RuntimeInfo, tmp_path: Path
) -> None:
    """Sockets of tools have short names only: the temporary directory is short, private, and gone after the run."""
    task = make_task()
    deep = replace(settings, workspaces_root=tmp_path / ("d" * 80), agent_temp_base="/tmp")
    prepared = await prepare(task, deep, runtime)
    assert len(str(prepared.tmpdir)) <= env_root.MAX_TMP_PATH
    assert prepared.tmpdir.stat().st_mode & 0o777 == 0o700
    (prepared.tmpdir / "left").write_text("x")
    prepared.release()
    second = await prepare(task, deep, runtime)
    assert not prepared.tmpdir.exists(), "an earlier delivery's must not stay behind"
    await exec_env.finish(second, task, outcome="completed")
    assert not second.tmpdir.exists()


# --- whose directory it is ---------------------------------------------------------------------------------------


def again(prior: Prepared, number: int = 2, /, **changes: object) -> ClaimedTask:
    return make_task(number, prior_work_dir=str(prior.workdir), **changes)


async def test_the_next_task_of_the_issue_gets_the_directory_back(settings: DaemonSettings, plain: RuntimeInfo) -> None:
    """N-10: same directory, the agent's files in place, the daemon's own refreshed."""
    first = await prepare(make_task(1, agent={"skills": [{"name": "old", "content": "x"}]}), settings, plain)
    (first.workdir / "notes.txt").write_text("mine")
    (first.workdir / "AGENTS.md").write_text("by the agent\n\n" + (first.workdir / "AGENTS.md").read_text())
    await exec_env.finish(first, make_task(1), outcome="completed")
    second = await prepare(again(first, agent={"instructions": "New ones.", "skills": []}), settings, plain)
    assert (second.root, (second.workdir / "notes.txt").read_text()) == (first.root, "mine")
    brief = (second.workdir / "AGENTS.md").read_text()
    assert brief.startswith("by the agent\n")
    assert "New ones." in brief
    assert "Be brief." not in brief
    assert brief.count("BEGIN MULTICA-RUNTIME") == 1
    assert not list(second.workdir.rglob("SKILL.md"))
    assert not (second.root / ".gc_meta.json").exists()
    second.release()


@pytest.mark.parametrize(
    "change",
    [
        {"issue_id": "issue-2"},
        {"issue_id": ""},
        {"chat_session_id": "chat-1"},
        {"agent_id": "agent-2", "agent": {"id": "agent-2"}},
        {"workspace_id": "ws-2"},
    ],
    ids=["issue", "no subject", "chat", "agent", "workspace"],
)
async def test_nobody_else_gets_it(settings: DaemonSettings, plain: RuntimeInfo, change: dict[str, object]) -> None:
    """Another issue, chat, agent or workspace gets a fresh directory, whatever path the claim names."""
    first = await run_through(make_task(1), settings, plain)
    second = await run_through(again(first, **change), settings, plain)
    assert second.root != first.root
    assert first.workdir.is_dir()


async def test_forged_places_are_refused(settings: DaemonSettings, plain: RuntimeInfo, tmp_path: Path) -> None:
    """A copied, linked, climbing or outside directory is never entered, even with the right marks in it."""
    first = await run_through(make_task(1), settings, plain)
    outside = tmp_path / "outside" / "ws-1" / "x"
    shutil.copytree(first.root, tmp_path / "copy")
    outside.parent.mkdir(parents=True)
    (tmp_path / "copy").rename(outside)
    linked = settings.workspaces_root / "ws-1" / "linked"
    linked.symlink_to(outside)
    climbing = f"{settings.workspaces_root}/ws-1/../../outside/ws-1/x/workdir"
    for number, place in enumerate(
        (outside / "workdir", linked / "workdir", climbing, first.root, "/", "workdir"), start=10
    ):
        prepared = await run_through(make_task(number, prior_work_dir=str(place)), settings, plain)
        assert prepared.root.name == f"{number:012x}"


async def test_a_workspace_that_became_a_link_is_not_followed(
    settings: DaemonSettings, plain: RuntimeInfo, tmp_path: Path
) -> None:
    """The directory is still there by name, but not in the place it was made in: nothing of it is used again."""
    first = await run_through(make_task(1), settings, plain)
    first.root.parent.rename(tmp_path / "moved")
    first.root.parent.symlink_to(tmp_path / "moved")
    assert (await run_through(again(first), settings, plain)).root != first.root


@pytest.mark.parametrize("mark", [".managed_env.json", "workdir/.multica/daemon_task_context.json"])
async def test_both_marks_are_needed(settings: DaemonSettings, plain: RuntimeInfo, mark: str) -> None:
    """An agent can write one of the two marks; only both together prove where a directory is from."""
    first = await run_through(make_task(1), settings, plain)
    (first.root / mark).write_text("{}")
    assert (await run_through(again(first), settings, plain)).root != first.root


async def test_a_directory_in_use_is_not_shared(settings: DaemonSettings, plain: RuntimeInfo) -> None:
    """While a run holds it, the next one works elsewhere; a second run of the very task is refused."""
    first = await prepare(make_task(1), settings, plain)
    second = await prepare(again(first), settings, plain)
    assert second.root != first.root
    with pytest.raises(PrepareError, match="in use"):
        await prepare(make_task(1), settings, plain)
    first.release()
    second.release()


async def test_a_second_delivery_starts_clean(settings: DaemonSettings, plain: RuntimeInfo) -> None:
    """What a delivery that never started left is wiped; what it checked out stays, because commits may be in it."""
    first = await prepare(make_task(1), settings, plain)
    (first.workdir / "half").write_text("x")
    first.release()
    second = await prepare(make_task(1), settings, plain)
    assert not (second.workdir / "half").exists()
    (second.workdir / "half").write_text("x")
    (second.root / ".checkouts.json").write_text("{}")
    second.release()
    third = await prepare(make_task(1), settings, plain)
    assert (third.workdir / "half").exists()
    third.release()


async def test_unowned_files_are_not_taken_over(settings: DaemonSettings, plain: RuntimeInfo) -> None:
    root = env_root.predict(settings.workspaces_root, "ws-1", make_task(1).id)
    root.mkdir(parents=True)
    (root / "precious").write_text("x")
    with pytest.raises(PrepareError):
        await prepare(make_task(1), settings, plain)
    assert (root / "precious").read_text() == "x"


# --- conversations -----------------------------------------------------------------------------------------------


async def test_a_conversation_belongs_to_its_directory(settings: DaemonSettings, runtime: RuntimeInfo) -> None:
    """S-11, S-12: resumed only in the same directory, and only while the CLI has it; otherwise the agent is told."""
    first = await run_through(make_task(1), settings, runtime)
    transcript = first.root / "claude-home" / "projects" / "some-dir" / "s-1.jsonl"
    lost = await run_through(again(first, prior_session_id="s-1"), settings, runtime)
    assert (lost.root, lost.resume_session_id) == (first.root, None)
    assert "could not be carried on" in lost.prompt
    transcript.parent.mkdir(parents=True)
    transcript.write_text("{}\n")
    kept = await run_through(again(first, 3, prior_session_id="s-1"), settings, runtime)
    assert kept.resume_session_id == "s-1"
    assert "could not be carried on" not in kept.prompt
    elsewhere = make_task(4, prior_session_id="s-1", prior_work_dir="/gone/workdir")
    assert (await run_through(elsewhere, settings, runtime)).resume_session_id is None
    hostile = again(first, 5, prior_session_id="../*")
    assert (await run_through(hostile, settings, runtime)).resume_session_id is None


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"agent_id": ""}, protocol.REASON_INVALID_IDENTITY),
        ({"agent": {"id": "agent-2"}}, protocol.REASON_INVALID_IDENTITY),
        ({"workspace_id": ""}, protocol.REASON_INVALID_IDENTITY),
        ({"workspace_id": "../up"}, protocol.REASON_UNKNOWN),
        ({"auth_token": "mul_of_the_owner"}, protocol.REASON_UNKNOWN),
        ({"auth_token": ""}, protocol.REASON_UNKNOWN),
        ({"agent": {"skill_refs": [{"id": "1"}]}}, protocol.REASON_SKILL_BUNDLE),
        (
            {"agent": {"skills": [{"name": "s", "files": [{"path": "../x", "content": "y"}]}]}},
            protocol.REASON_SKILL_BUNDLE,
        ),
    ],
)
async def test_impossible_tasks(
    settings: DaemonSettings, plain: RuntimeInfo, change: dict[str, object], reason: str
) -> None:
    """EX-01: a task that cannot run has a reason, leaves no lock behind, and never gets the daemon's own token."""
    task = make_task(1, **change)
    for _ in range(2):
        with pytest.raises(PrepareError) as refused:
            await prepare(task, settings, plain)
        assert refused.value.reason == reason
    assert not list(settings.workspaces_root.rglob("x"))


async def test_a_cancelled_preparation_holds_no_lock(settings: DaemonSettings, plain: RuntimeInfo) -> None:
    job = asyncio.create_task(prepare(make_task(1), settings, plain))
    await asyncio.sleep(0)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job

    async def free() -> bool:
        try:
            (await prepare(make_task(1), settings, plain)).release()
        except PrepareError:
            return False
        return True

    await until_async(free)


# --- the end -----------------------------------------------------------------------------------------------------


async def test_the_end_names_the_branch_and_keeps_the_work(
    settings: DaemonSettings, plain: RuntimeInfo, remote: Path, git: Git
) -> None:
    """The branch is reported when it got commits, the collector is told what is on no remote, nothing is deleted."""
    cache = RepoCache(settings.workspaces_root, settings.environ)
    task = make_task(1)
    prepared = await prepare(task, settings, plain)

    async def end() -> tuple[str, bool]:
        finished = await exec_env.finish(prepared, task, outcome="completed")
        meta = json.loads((prepared.root / ".gc_meta.json").read_text())
        assert (meta["kind"], meta["issue_id"], meta["workspace_id"]) == ("issue", "issue-1", "ws-1")
        return finished.branch_name, meta["unpushed"]

    path = (
        await cache.checkout(
            workspace_id="ws-1", url=str(remote), workdir=prepared.workdir, task=task, agent_name="My Agent"
        )
    ).path
    assert await end() == ("", False)
    (path / "file.txt").write_text("mine\n")
    assert await end() == ("", True)
    git(path, "commit", "--quiet", "-am", "mine")
    assert await end() == ("agent/my-agent/000000000001", True)
    git(path, "push", "--quiet", "origin", "HEAD")
    assert await end() == ("agent/my-agent/000000000001", False)
    (path / ".git").unlink()
    assert await end() == ("", True)
    assert (path / "file.txt").read_text() == "mine\n"


def test_tasks_that_are_prepared_at_once_share_one_command(tmp_path: Path) -> None:
    """Many first tasks of a new daemon put the same command in place together; each finds it whole."""
    with ThreadPoolExecutor(16) as pool:
        for number in range(20):
            folder = tmp_path / str(number) / "bin"
            ready = Barrier(16)
            made = [pool.submit(lambda f=folder, b=ready: (b.wait(10), ensure_command(f))) for _ in range(16)]
            assert all(one.result(20)[1] == folder for one in made)
            assert [path.name for path in folder.iterdir()] == ["multica"]
