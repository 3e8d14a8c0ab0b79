"""Working copies for tasks: linked worktrees of a bare clone, each on a branch of its own."""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from daemon_client.workspace.git import Git, GitError
from daemon_client.workspace.repo_names import repo_name

_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")


class RepoError(Exception):
    """A repository cannot be checked out. The text is for the agent and says what to do; it holds no credential."""


@dataclass(frozen=True)
class Checkout:
    """Where the working copy is and which branch the task works on. `note` says what was kept from earlier work."""

    path: Path
    branch_name: str
    note: str = ""


class Worktrees:
    """Places working copies. The caller holds the lock of the bare clone."""

    def __init__(self, git: Git) -> None:
        self._git = git

    async def place(self, bare: Path, url: str, workdir: Path, branch: str, ref: str) -> Checkout:
        """A working copy in `workdir` on `branch`. Raises RepoError or GitError; what was there before is kept."""
        # A directory that somebody removed by hand leaves its registration, which would block its path and branch.
        await self._git.run("worktree", "prune", "--expire=now", cwd=bare)
        target, is_ours = await self._target(bare, url, workdir)
        if is_ours:
            return await self._take_over(bare, target, branch, ref)
        return await self._add(bare, target, branch, ref)

    async def _target(self, bare: Path, url: str, workdir: Path) -> tuple[Path, bool]:
        """(directory for the checkout, whether it is already a working copy of this clone)."""
        name = repo_name(url)
        for candidate in (workdir / name, workdir / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:6]}"):
            if await asyncio.to_thread(_is_free, candidate):
                return candidate, False
            if not candidate.is_symlink() and await self._belongs_to(candidate, bare):
                return candidate, True
        raise RepoError(f"{workdir / name} is in the way: it is not a checkout of {url}. Move it and try again")

    async def _belongs_to(self, path: Path, bare: Path) -> bool:
        try:
            answer = await self._git.out(
                "rev-parse", "--path-format=absolute", "--git-common-dir", "--show-toplevel", cwd=path
            )
        except (GitError, OSError):
            return False
        common, _, top = answer.partition("\n")
        return _same(Path(common), bare) and _same(Path(top), path)

    # --- a new working copy --------------------------------------------------------------------------------------

    async def _add(self, bare: Path, target: Path, branch: str, ref: str) -> Checkout:
        branch = await self._free_branch(bare, branch)
        if await self._exists(bare, branch) and await self._unpushed(bare, f"refs/heads/{branch}"):
            await self._git.run("worktree", "add", str(target), branch, cwd=bare)
            return Checkout(target, branch, "continues the commits that this task made before")
        base = await self.resolve(bare, ref)
        await self._git.run("worktree", "add", "--no-track", "-B", branch, str(target), base, cwd=bare)
        return Checkout(target, branch)

    async def _free_branch(self, bare: Path, branch: str) -> str:
        """The branch, or a numbered one while it is checked out somewhere else (the same task in a second
        directory).
        """
        listing = await self._git.out("worktree", "list", "--porcelain", cwd=bare)
        taken = {line.removeprefix("branch refs/heads/") for line in listing.splitlines() if line.startswith("branch ")}
        names = (branch, *(f"{branch}-{number}" for number in range(2, 100)))
        return next(name for name in names if name not in taken)

    async def resolve(self, bare: Path, ref: str) -> str:
        """The commit to start from: a branch of the remote, a tag or a commit; without `ref` the remote's default."""
        if ref:
            names = [f"refs/remotes/origin/{ref}", f"refs/tags/{ref}", *([ref] if _COMMIT.fullmatch(ref) else [])]
        else:
            names = [f"refs/remotes/origin/{name}" for name in ("HEAD", "main", "master")]
        for name in names:
            if commit := await self._commit(bare, name):
                return commit
        if ref:
            raise RepoError(f"{ref!r} is no branch, tag or commit of this repository")
        return await self._only_branch(bare)

    async def _commit(self, bare: Path, name: str) -> str:
        try:
            return await self._git.out(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", cwd=bare
            )
        except GitError:
            return ""

    async def _only_branch(self, bare: Path) -> str:
        listing = await self._git.out("for-each-ref", "--format=%(objectname)", "refs/remotes/origin", cwd=bare)
        commits = listing.split()
        if len(commits) == 1:
            return commits[0]
        if not commits:
            raise RepoError("the repository has no commits yet; make a first one before agents can work in it")
        raise RepoError("the repository names no default branch; say which one with --ref")

    # --- a working copy that is there ----------------------------------------------------------------------------

    async def _take_over(self, bare: Path, target: Path, branch: str, ref: str) -> Checkout:
        current = await self._git.out("rev-parse", "--abbrev-ref", "HEAD", cwd=target)
        if current == branch:
            return Checkout(target, branch, "was already checked out")
        branch = await self._free_branch(bare, branch)
        if await self._exists(bare, branch) and await self._unpushed(bare, f"refs/heads/{branch}"):
            # The agent itself went from this branch to another one; where it is now is its own affair.
            return Checkout(target, current, f"left as it is; the earlier commits of this task are on {branch}")
        dirty = bool(await self._git.out("status", "--porcelain", cwd=target))
        if dirty and ref:
            raise RepoError(
                f"{target} has changes that are not committed; commit or remove them before you switch to {ref}"
            )
        unpushed = await self._unpushed(target, "HEAD")
        # Commits on a branch stay on that branch; those on no branch would be lost by moving away.
        if not dirty and (not unpushed or (ref and current != "HEAD")):
            await self._git.run(
                "checkout", "--quiet", "--no-track", "-B", branch, await self.resolve(bare, ref), cwd=target
            )
            return Checkout(target, branch)
        await self._git.run("checkout", "--quiet", "-B", branch, cwd=target)
        return Checkout(target, branch, "continues earlier work that is not on the remote yet")

    async def _exists(self, repository: Path, branch: str) -> bool:
        return bool(await self._commit(repository, f"refs/heads/{branch}"))

    async def _unpushed(self, repository: Path, revision: str) -> bool:
        return await self._git.out("rev-list", "--max-count=1", revision, "--not", "--remotes", cwd=repository) != ""


def _is_free(path: Path) -> bool:
    if path.is_symlink():
        return False
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
