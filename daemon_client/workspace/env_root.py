"""The directory of one task: locked for as long as the task uses it, reused only with proof of where it is from."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from daemon_client.protocol import ClaimedTask
from daemon_client.workspace import provenance
from daemon_client.workspace.repo_names import task_key

LOCK: Final = ".task_lock"
OWNER: Final = ".task_owner"
WORKDIR: Final = "workdir"
FOLDERS: Final = (WORKDIR, "tmp", "config", "output", "logs")
# Sockets have names of at most 108 bytes, and tools put theirs some way below the temporary directory.
MAX_TMP_PATH: Final = 60


class RootTaken(Exception):
    """The directory belongs to something else; the text says to what."""


class RootLock:
    """An exclusive lock on a task's directory. It belongs to the open file: keep the object until the task is over."""

    def __init__(self, root: Path) -> None:
        self._handle = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._handle)
            raise RootTaken(f"{root} is in use by another run") from None

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def predict(workspaces_root: Path, workspace_id: str, task_id: str) -> Path:
    """Where a task's directory will be; known before anything is prepared, so that the collector can be told."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", workspace_id):
        raise RootTaken(f"{workspace_id[:100]!r} cannot be the id of a workspace")
    return workspaces_root / workspace_id / task_key(task_id)


def claim_fresh(root: Path, task: ClaimedTask) -> RootLock:
    """Lock and empty the directory of a new task. Raises RootTaken when it belongs to something else.

    A second delivery of the same task finds it again. What its first delivery checked out stays: it may hold commits.
    """
    root.mkdir(parents=True, exist_ok=True)
    lock = RootLock(root)
    try:
        owner = (root / OWNER).read_text("utf-8").strip() if (root / OWNER).is_file() else ""
        rest = [path for path in root.iterdir() if path.name not in (LOCK, OWNER)]
        if owner and owner != task.id:
            raise RootTaken(f"{root} belongs to task {owner}")
        if not owner and rest:
            raise RootTaken(f"{root} holds files that no task owns")
        if owner and not (root / provenance.CHECKOUTS).is_file():
            clear_tmp(root)
            for path in rest:
                _remove(path)
        (root / OWNER).write_text(task.id, "utf-8")
    except BaseException:
        lock.release()
        raise
    return lock


def claim_prior(workspaces_root: Path, task: ClaimedTask) -> tuple[Path, RootLock] | None:
    """The directory of an earlier task of the same agent and subject, locked; None when there is any doubt."""
    if not task.prior_work_dir:
        return None
    workdir = Path(task.prior_work_dir)
    root = workdir.parent
    if (
        workdir.name != WORKDIR
        or root.parent != workspaces_root / task.workspace_id
        or workdir.is_symlink()
        or root.is_symlink()
    ):
        return None
    try:
        before = workdir.stat()
        if workdir.resolve(strict=True) != workdir or not provenance.is_reusable_for(task, root):
            return None
        lock = RootLock(root)
    except (OSError, RootTaken):
        return None
    # Looked at again under the lock: it must still be the directory that was checked.
    with suppress(OSError):
        after = workdir.stat()
        if (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino) and provenance.is_reusable_for(task, root):
            (root / OWNER).write_text(task.id, "utf-8")
            return root, lock
    lock.release()
    return None


def make_folders(root: Path, temp_base: str) -> Path:
    """Make the tree; returns the private temporary directory, which lies elsewhere when its path would be too long."""
    for name in FOLDERS:
        (root / name).mkdir(exist_ok=True, mode=0o700 if name in ("tmp", "config") else 0o755)
    inside = root / "tmp"
    if len(str(inside)) <= MAX_TMP_PATH:
        return inside
    link = root / "tmp" / "elsewhere"
    if link.is_symlink() and link.is_dir():
        return link.resolve()
    link.unlink(missing_ok=True)
    short = Path(tempfile.mkdtemp(prefix="multica-task-", dir=temp_base if Path(temp_base).is_absolute() else None))
    link.symlink_to(short)
    return short


def clear_tmp(root: Path) -> None:
    """Empty the temporary directory after a run, the one elsewhere included."""
    folder = root / "tmp"
    link = folder / "elsewhere"
    if link.is_symlink():
        short = link.resolve()
        if short.name.startswith("multica-task-"):
            shutil.rmtree(short, ignore_errors=True)
    for path in folder.iterdir() if folder.is_dir() else ():
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
