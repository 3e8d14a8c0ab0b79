"""Who may change a cached repository: one task at a time in this process, one process at a time on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import psutil

BUSY_AFTER: Final = 10.0
POLL: Final = 0.1


class RepoBusy(Exception):
    """Another task is cloning or fetching this repository; asking again in a moment will do."""


class RepoLocks:
    """One lock a path. Waiting ends with RepoBusy after 10 s, so that nobody queues behind a long clone unknowingly."""

    def __init__(self) -> None:
        self._locks: dict[Path, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def hold(self, path: Path, patience: float = BUSY_AFTER) -> AsyncIterator[None]:
        lock = self._locks.setdefault(path, asyncio.Lock())
        try:
            async with asyncio.timeout(patience):
                await lock.acquire()
        except TimeoutError:
            raise RepoBusy(f"the repository cache {path.name} is in use; try again in a moment") from None
        try:
            async with _file_lock(path.with_name(path.name + ".lock"), patience):
                yield
        finally:
            lock.release()


@contextlib.asynccontextmanager
async def _file_lock(path: Path, patience: float) -> AsyncIterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = asyncio.get_running_loop().time() + patience
        while not _try_lock(handle):
            if asyncio.get_running_loop().time() > end:
                raise RepoBusy(f"another daemon is using the repository cache {path.stem}; try again in a moment")
            await asyncio.sleep(POLL)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- locks of git itself -----------------------------------------------------------------------------------------


def _git_locks(repository: Path) -> Iterator[Path]:
    yield from repository.glob("*.lock")
    yield from repository.glob("refs/**/*.lock")
    yield from repository.glob("worktrees/*/*.lock")
    yield from repository.glob("objects/info/*.lock")


def _git_is_alive(places: set[str]) -> bool:
    """Whether any git process works in one of these directories."""
    for process in psutil.process_iter(["name"]):
        if not (process.info["name"] or "").startswith("git"):
            continue
        with contextlib.suppress(psutil.Error):
            known = [process.cwd(), *process.cmdline(), process.environ().get("GIT_DIR", "")]
            if any(text == place or text.startswith(place + os.sep) for text in known for place in places):
                return True
    return False


def _worktrees(repository: Path) -> Iterator[str]:
    for pointer in repository.glob("worktrees/*/gitdir"):
        with contextlib.suppress(OSError):
            yield str(Path(pointer.read_text("utf-8").strip()).parent)


def remove_stale_git_locks(repository: Path) -> list[Path]:
    """Remove lock files that no living git process can own; returns them. Call while holding the repository's lock.

    Agents run git in the worktrees without our lock, so a lock is stale only when no git works there at all.
    """
    locks = list(_git_locks(repository))
    if not locks or _git_is_alive({str(repository), *_worktrees(repository)}):
        return []
    for path in locks:
        path.unlink(missing_ok=True)
    return locks
