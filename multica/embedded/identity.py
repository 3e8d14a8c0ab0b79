"""As whom the services run. PostgreSQL refuses root, so root needs a way that creates no user and opens no folder.

Order for root: `MULTICA_EMBEDDED_USER` when given; a user namespace of its own; an existing ordinary account
(`multica`, `postgres`, `nobody`), whose data then lies outside root's home; else a refusal that says what to do.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from multica.embedded.errors import EmbeddedError

CHILD = Path(__file__).with_name("child.py")
ACCOUNTS = ("multica", "postgres", "nobody")
SHARED_ROOT = Path("/var/lib/multica")


@dataclass(frozen=True)
class Identity:
    """`userns`: own user namespace. `uid`, `gid`: account to become. Neither: the caller itself."""

    userns: bool = False
    uid: int | None = None
    gid: int | None = None
    name: str = ""

    def data_home(self, state: Path) -> Path:
        """Where data, sockets and logs of the services lie: the state directory, unless the account cannot reach it."""
        if self.uid is None:
            return state
        return SHARED_ROOT / hashlib.sha256(str(state).encode()).hexdigest()[:12]

    def own(self, path: Path) -> Path:
        """Makes the 0700 folder `path` for the account and returns it; a link or a stranger's folder is refused."""
        if self.uid is not None:
            SHARED_ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
        expected = {os.geteuid(), self.uid}
        if path.is_symlink() or info.st_uid not in expected:
            raise EmbeddedError(f"{path} is a link or belongs to another user; remove it or set MULTICA_STATE_DIR")
        path.chmod(0o700)
        if self.uid is not None:
            os.chown(path, self.uid, self.gid or -1)
        return path


@cache
def user_namespace_works() -> bool:
    """Tries it in a child: kernels, containers and sandboxes refuse it in too many ways to predict."""
    program = f"import runpy; runpy.run_path({str(CHILD)!r})['enter_user_namespace']()"
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program], capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return tried.returncode == 0


def account(name: str) -> Identity | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Identity(uid=entry.pw_uid, gid=entry.pw_gid, name=name) if entry.pw_uid else None


def choose() -> Identity:
    """The identity for this process; raises EmbeddedError when root has no way."""
    if os.geteuid() != 0:
        return Identity(name="self")
    wanted = os.environ.get("MULTICA_EMBEDDED_USER", "").strip()
    if wanted:
        found = account(wanted)
        if found is None:
            raise EmbeddedError(f"MULTICA_EMBEDDED_USER names {wanted!r}, which is no ordinary account on this machine")
        return found
    if sys.platform.startswith("linux") and user_namespace_works():
        return Identity(userns=True, name="namespace")
    for name in ACCOUNTS:
        if found := account(name):
            return found
    raise EmbeddedError(
        "PostgreSQL does not run as root, and this machine offers neither user namespaces nor an ordinary account. "
        "Run as an ordinary user, or set DATABASE_URL and REDIS_URL to servers of yours."
    )
