"""Bare clones shared by all tasks of a workspace: made, fetched, healed. Working copies are in `worktrees`.

Layout: `<workspaces_root>/.repos/<workspace_id>/<host+path>.git`, only remote-tracking branches and the tasks' own
ones inside. Rules that hold whatever happens: no work that is not on the remote is ever lost, nobody is asked for a
password, and the user's git configuration stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from daemon_client.protocol import ClaimedTask
from daemon_client.workspace import provenance
from daemon_client.workspace.git import Git, GitError
from daemon_client.workspace.repo_locks import RepoBusy, RepoLocks, remove_stale_git_locks
from daemon_client.workspace.repo_names import (
    InvalidName,
    bare_dir_name,
    branch_name,
    check_ref,
    check_url,
    split_url,
)
from daemon_client.workspace.worktrees import Checkout, RepoError, Worktrees

__all__ = ["Checkout", "RepoBusy", "RepoCache", "RepoError"]

log = logging.getLogger(__name__)

LAST_USED: Final = ".multica_last_used"
FILTER: Final = "--filter=blob:none"
# Named so that no repository of a project is likely to have them. The brief and the skills lie beside the checkout,
# so a repository may get a CLAUDE.md of its own without having to force it in.
EXCLUDED: Final = (".agent_context/", ".multica/")
_AUTH: Final = (
    "could not read username", "could not read password", "authentication failed", "permission denied", "access denied",
    "terminal prompts disabled", "host key verification failed", "returned error: 401", "returned error: 403",
)  # fmt: skip
_DAMAGED: Final = (
    "not a git repository", "bad object", "is corrupt", "object file", "invalid sha1 pointer", "is empty", "inflate:",
    "bad packed object", "bad config", "does not point to a valid object", "cannot be accessed", "unable to parse",
)  # fmt: skip
_LOCKED: Final = (".lock': file exists", "cannot lock ref", "unable to create")

T = TypeVar("T")


class RepoCache:
    """The cache below one workspaces root. Safe for concurrent tasks and, by file locks, for several daemons."""

    def __init__(self, root: Path, environ: Mapping[str, str] | None = None) -> None:
        self._root = root if root.name == ".repos" else root / ".repos"
        self._git = Git(environ)
        self._worktrees = Worktrees(self._git)
        self._locks = RepoLocks()

    def bare_path(self, workspace_id: str, url: str) -> Path:
        """Where the clone of `url` is, or would be."""
        folder = re.sub(r"[^A-Za-z0-9._-]", "_", workspace_id).lstrip(".") or "_"
        return self._root / folder / bare_dir_name(url)

    async def ensure(self, workspace_id: str, url: str) -> Path:
        """The bare clone of `url`, made when it is missing and brought up to date when it is there; returns its path.

        Raises RepoError when it cannot be cloned, RepoBusy when somebody else holds it for more than 10 s. A clone
        that cannot be fetched just now is used as it is.
        """
        url = _checked(check_url, url)
        bare = self.bare_path(workspace_id, url)
        async with self._locks.hold(bare):
            await self._refresh(bare, url)
        return bare

    async def checkout(
        self, *, workspace_id: str, url: str, ref: str | None = None, workdir: Path, task: ClaimedTask, agent_name: str
    ) -> Checkout:
        """A working copy of `url` in `workdir` on the branch `agent/<agent>/<task>`, from `ref` or the remote's
        default.

        Asking again gives the same one. What an earlier task left in a reused directory is taken over: when it is
        clean and pushed it moves to the new base, otherwise the new branch starts from what is there. Raises
        RepoError (URL, ref, credentials, something in the way) or RepoBusy.
        """
        url = _checked(check_url, url)
        ref = _checked(check_ref, ref) if ref else ""
        bare, branch = self.bare_path(workspace_id, url), branch_name(agent_name, task.id)
        async with self._locks.hold(bare):
            await self._refresh(bare, url)
            try:
                made = await self._healing(bare, lambda: self._worktrees.place(bare, url, workdir, branch, ref))
                head = await self._git.out("rev-parse", "HEAD", cwd=made.path)
            except GitError as error:
                raise RepoError(_explain(error, url)) from error
        await asyncio.to_thread(provenance.record_checkout, made.path, url, made.branch_name, head)
        return made

    # --- the bare clone ------------------------------------------------------------------------------------------

    async def _refresh(self, bare: Path, url: str) -> None:
        try:
            if not await asyncio.to_thread(bare.exists):
                await self._install(bare, url)
            elif not await self._is_sound(bare):
                await self._rebuild(bare, url)
            else:
                await self._update(bare, url)
        except GitError as error:
            raise RepoError(_explain(error, url)) from error
        await asyncio.to_thread((bare / LAST_USED).touch)

    async def _is_sound(self, bare: Path) -> bool:
        try:
            inside = await self._git.out("rev-parse", "--is-bare-repository", "--git-dir", cwd=bare)
        except (GitError, OSError):
            return False
        # Without the second answer a parent directory that is a repository would pass for this one.
        return inside.split() == ["true", "."]

    async def _update(self, bare: Path, url: str) -> None:
        """Fetch. Only a damaged clone is made anew; with an unreachable remote the old state serves."""
        try:
            if await self._git.out("config", "--get", "remote.origin.url", cwd=bare) != url:
                await self._git.run("config", "remote.origin.url", url, cwd=bare)
            await self._healing(bare, lambda: self._fetch(bare))
        except GitError as error:
            if error.says(*_DAMAGED):
                log.warning("the clone %s is damaged and is made anew: %s", bare.name, error)
                await self._rebuild(bare, url)
            else:
                log.warning("the clone %s could not be brought up to date: %s", bare.name, _explain(error, url))

    async def _fetch(self, bare: Path) -> None:
        await self._git.run("fetch", "--quiet", "--prune", "--tags", "--force", "origin", cwd=bare)
        if not await self._git.ok("rev-parse", "--verify", "--quiet", "refs/remotes/origin/HEAD^{commit}", cwd=bare):
            await self._git.ok("remote", "set-head", "origin", "--auto", cwd=bare)

    async def _healing(self, bare: Path, act: Callable[[], Awaitable[T]]) -> T:
        """Do something with the clone; when a lock that nobody holds is in the way, remove it and do it once more."""
        try:
            return await act()
        except GitError as error:
            if not error.says(*_LOCKED):
                raise
            removed = await asyncio.to_thread(remove_stale_git_locks, bare)
            if not removed:
                raise
            log.warning("removed %d lock files without an owner from %s", len(removed), bare.name)
            return await act()

    async def _install(self, bare: Path, url: str) -> None:
        """Clone beside its place and move it there when it is whole; a killed attempt is swept away by the next one."""
        await asyncio.to_thread(_remove_attempts, bare)
        attempt = bare.with_name(f".{bare.name}.new-{os.getpid()}")
        try:
            await self._clone(attempt, url)
            await asyncio.to_thread(attempt.rename, bare)
        finally:
            await asyncio.to_thread(shutil.rmtree, attempt, ignore_errors=True)

    async def _rebuild(self, bare: Path, url: str) -> None:
        """Replace a damaged clone. The old one is kept aside, because the only copy of a commit may be in it."""
        fresh = bare.with_name(f".{bare.name}.new-{os.getpid()}")
        await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)
        try:
            await self._clone(fresh, url)
            await asyncio.to_thread(bare.rename, _aside(bare))
            await asyncio.to_thread(fresh.rename, bare)
        finally:
            await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)

    async def _clone(self, path: Path, url: str) -> None:
        git = self._git
        await asyncio.to_thread(path.mkdir, parents=True)
        # Not `clone --bare`: that would copy the remote's branches as local ones, which then grow old unnoticed.
        await git.run("init", "--quiet", "--bare", "--template=", str(path))
        await git.run("remote", "add", "origin", url, cwd=path)
        fetched = await git.run("fetch", "--quiet", FILTER, "--tags", "origin", cwd=path)
        if "filtering not recognized" in fetched.stderr:
            # The remote sent everything; marked as partial, the clone would ask it for objects that do not exist.
            for key in ("remote.origin.promisor", "remote.origin.partialclonefilter"):
                await git.ok("config", "--unset-all", key, cwd=path)
        await git.ok("remote", "set-head", "origin", "--auto", cwd=path)
        await asyncio.to_thread(_write_exclude, path)


def _write_exclude(path: Path) -> None:
    (path / "info").mkdir(exist_ok=True)
    (path / "info" / "exclude").write_text("\n".join(EXCLUDED) + "\n", "utf-8")


def _remove_attempts(bare: Path) -> None:
    for leftover in bare.parent.glob(f".{bare.name}.new-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _aside(bare: Path) -> Path:
    number = 1
    while (place := bare.with_name(f".{bare.name}.damaged-{number}")).exists():
        number += 1
    return place


def _checked(check: Callable[[str], str], value: str) -> str:
    try:
        return check(value)
    except InvalidName as error:
        raise RepoError(str(error)) from error


def _explain(error: GitError, url: str) -> str:
    """What went wrong, for the agent and the operator: without credentials, with the host that refused."""
    place = split_url(url)[0] or "this machine"
    if error.says(*_AUTH):
        return (
            f"{place} refuses access to the repository without a login. The daemon uses the git credentials of its "
            f"user and cannot ask for a password: set up a credential helper or an ssh key for {place}. "
            f"git said: {error.stderr.strip()}"
        )
    return str(error)
