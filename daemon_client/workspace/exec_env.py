"""Prepares what a task runs in, and puts it in order afterwards. The engine calls `prepare`, runs, then `finish`.

A task's directory is `<workspaces_root>/<workspace_id>/<last 12 digits of the task id>/` with `workdir` (where the
agent starts, empty but for the daemon's files), `tmp`, `config`, `output` and `logs`. A later task of the same agent
on the same issue or chat gets the same directory back, if both marks in it say so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from daemon_client import protocol
from daemon_client.agents.registry import descriptor_for
from daemon_client.config import DaemonSettings, RuntimeInfo
from daemon_client.protocol import ClaimedTask
from daemon_client.workspace import agent_env, brief, env_root, prompt, provenance, provider_home, skills
from daemon_client.workspace.git import Git, GitError

OWN_FOLDER: Final = ".multica"


@dataclass(frozen=True)
class Prepared:
    """Everything an agent needs to start. Holds the lock of its directory until `finish` (or `release`) is called."""

    root: Path
    workdir: Path
    tmpdir: Path
    config_root: Path
    env: dict[str, str] = field(repr=False)
    prompt: str = field(repr=False)
    brief_path: Path | None
    resume_session_id: str | None
    lock: env_root.RootLock | None = field(default=None, repr=False, compare=False)

    def release(self) -> None:
        """Give the directory back without finishing; for a run that never began."""
        if self.lock is not None:
            self.lock.release()


@dataclass(frozen=True)
class Finished:
    """What a run left: the branch with its commits (empty: none), and a directory that must be kept for the user."""

    branch_name: str = ""
    durable_work_dir: str = ""


class PrepareError(Exception):
    """The task cannot be given a place to run in. `reason` is a failure_reason code."""

    def __init__(self, text: str, reason: str = protocol.REASON_UNKNOWN) -> None:
        self.reason = reason
        super().__init__(text)


async def prepare(
    task: ClaimedTask, *, settings: DaemonSettings, runtime: RuntimeInfo, daemon_port: int, server_url: str, slot: int
) -> Prepared:
    """Make or reuse the task's directory and compose environment, brief and prompt.

    Nothing is checked out. Raises PrepareError; then, and when it is cancelled, nothing stays locked.
    """
    _check_identity(task)
    environ = settings.environ or dict(os.environ)
    has_identity = await _has_git_identity(environ)
    job = asyncio.ensure_future(
        asyncio.to_thread(_prepare, task, settings, runtime, environ, (daemon_port, server_url, slot), has_identity)
    )
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        job.add_done_callback(_release_result)
        raise
    except (env_root.RootTaken, OSError) as error:
        raise PrepareError(f"the directory of the task cannot be prepared: {error}") from error
    except skills.SkillError as error:
        raise PrepareError(str(error), protocol.REASON_SKILL_BUNDLE) from error


def _release_result(job: asyncio.Future[Prepared]) -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().release()


def _check_identity(task: ClaimedTask) -> None:
    if not task.agent_id or not task.agent or task.agent.get("id") != task.agent_id:
        raise PrepareError("the task does not say which agent it is for", protocol.REASON_INVALID_IDENTITY)
    if not task.workspace_id:
        raise PrepareError("the task does not say which workspace it belongs to", protocol.REASON_INVALID_IDENTITY)
    if not task.auth_token.strip().startswith(protocol.PREFIX_TASK_TOKEN):
        raise PrepareError("the task came without a token of its own; the daemon's must not be given to an agent")
    if task.agent.get("skill_refs") and not task.agent.get("skills"):
        raise PrepareError("the server sent references instead of skills", protocol.REASON_SKILL_BUNDLE)


async def _has_git_identity(environ: Mapping[str, str]) -> bool:
    if environ.get("GIT_AUTHOR_EMAIL") or environ.get("EMAIL"):
        return True
    try:
        return await Git(environ).ok("config", "--get", "user.email", cwd=Path("/"))
    except OSError:  # no git on this machine: the agent will say so if it needs one
        return True


def _prepare(
    task: ClaimedTask,
    settings: DaemonSettings,
    runtime: RuntimeInfo,
    environ: Mapping[str, str],
    reach: tuple[int, str, int],
    has_identity: bool,
) -> Prepared:
    top = settings.workspaces_root.absolute()
    top.mkdir(parents=True, exist_ok=True)
    top = top.resolve()
    root, lock, reused = _claim(top, task)
    try:
        return _fill(task, settings, runtime, environ, reach, has_identity, (top, root, lock, reused))
    except BaseException:
        lock.release()
        raise


def _claim(top: Path, task: ClaimedTask) -> tuple[Path, env_root.RootLock, bool]:
    predicted = env_root.predict(top, task.workspace_id, task.id)
    if prior := env_root.claim_prior(top, task):
        return (*prior, True)
    return predicted, env_root.claim_fresh(predicted, task), False


def _fill(
    task: ClaimedTask,
    settings: DaemonSettings,
    runtime: RuntimeInfo,
    environ: Mapping[str, str],
    reach: tuple[int, str, int],
    has_identity: bool,
    claimed: tuple[Path, Path, env_root.RootLock, bool],
) -> Prepared:
    top, root, lock, reused = claimed
    port, server_url, slot = reach
    tmp = env_root.make_folders(root, settings.agent_temp_base)
    workdir, config = root / env_root.WORKDIR, root / "config"
    _write_marks(top, root, workdir, task)
    provenance.write_json(config / "config.json", {"server_url": server_url, "workspace_id": task.workspace_id})
    homes = provider_home.prepare_home(runtime.provider, root, environ)
    brief_path = _write_context(task, runtime, root, workdir)
    session = _session(task, runtime, root, workdir, reused)
    block = agent_env.task_block(task, root=top, config=config, tmp=tmp, port=port, server_url=server_url, slot=slot)
    commands = agent_env.ensure_command(top / OWN_FOLDER / "bin")
    lost = bool(task.prior_session_id and not session) or task.raw.get("prior_session_resume_unavailable") is True
    return Prepared(
        root=root,
        workdir=workdir,
        tmpdir=tmp,
        config_root=config,
        env=agent_env.compose(task, block, homes, environ=environ, commands=commands, has_identity=has_identity),
        prompt=prompt.build(task, continuity_lost=lost),
        brief_path=brief_path,
        resume_session_id=session,
        lock=lock,
    )


def _write_marks(top: Path, root: Path, workdir: Path, task: ClaimedTask) -> None:
    guard = top / provenance.TASK_CONTEXT
    if not guard.is_file():
        # Tells the command line that it is in the agents' territory, where it must never act with a person's
        # credentials.
        provenance.write_json(guard, {"managed_by": provenance.MANAGED_BY})
    (root / provenance.GC_META).unlink(missing_ok=True)
    provenance.mark(root, workdir, task)


def _write_context(task: ClaimedTask, runtime: RuntimeInfo, root: Path, workdir: Path) -> Path:
    cli = descriptor_for(runtime.provider)
    skills.remove_skills(root)
    bundles = task.agent.get("skills")
    given = [bundle for bundle in bundles if isinstance(bundle, dict)] if isinstance(bundles, list) else []
    names = skills.write_skills(root, workdir / cli.skills_dir, given)
    path = workdir / cli.brief_file
    brief.inject(path, brief.compose(task, names))
    return path


def _session(task: ClaimedTask, runtime: RuntimeInfo, root: Path, workdir: Path, reused: bool) -> str | None:
    """The conversation to resume: only in the very directory it belongs to, and only if the CLI still has it."""
    if not reused or not task.prior_session_id or str(workdir) != str(Path(task.prior_work_dir)):
        return None
    return task.prior_session_id if provider_home.has_session(runtime.provider, root, task.prior_session_id) else None


# --- after the run -----------------------------------------------------------------------------------------------


async def finish(prepared: Prepared, task: ClaimedTask, *, outcome: str) -> Finished:
    """Say what the run left, tidy up and unlock. Deletes nothing that an agent made, except in its temporary directory.

    Never raises for what it finds; repositories that cannot be read count as holding unpushed work.
    """
    try:
        branch, unpushed = await _survey(prepared.root)
        await asyncio.to_thread(env_root.clear_tmp, prepared.root)
        meta = provenance.gc_meta(task, outcome=outcome, unpushed=unpushed)
        await asyncio.to_thread(provenance.write_json, prepared.root / provenance.GC_META, meta)
    except OSError:
        return Finished()
    finally:
        prepared.release()
    return Finished(branch_name=branch)


async def _survey(root: Path) -> tuple[str, bool]:
    """(branch with commits of this run, whether any checkout holds work that is on no remote)."""
    git, branch, unpushed = Git(), "", False
    for place, entry in provenance.read_json(root / provenance.CHECKOUTS).items():
        path = Path(place)
        if not path.is_dir():
            continue
        try:
            current = await git.out("rev-parse", "--abbrev-ref", "HEAD", cwd=path)
            head = await git.out("rev-parse", "HEAD", cwd=path)
            dirty = await git.out("status", "--porcelain", cwd=path)
            ahead = await git.out("rev-list", "--max-count=1", "HEAD", "--not", "--remotes", cwd=path)
        except (GitError, OSError):
            unpushed = True
            continue
        unpushed = unpushed or bool(dirty or ahead)
        if not branch and current != "HEAD" and isinstance(entry, dict) and head != entry.get("base"):
            branch = current
    return branch, unpushed
