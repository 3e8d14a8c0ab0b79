"""Starts and stops child processes that must never outlive the launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from multica.embedded.identity import CHILD, Identity

Child = subprocess.Popen[bytes]
PIPE = subprocess.PIPE


def spec_argv(argv: list[str], identity: Identity, die_signal: int, *, watch: bool = False) -> list[str]:
    spec = {
        "parent": os.getpid(),
        "signal": die_signal,
        "argv": argv,
        "userns": identity.userns,
        "uid": identity.uid,
        "gid": identity.gid,
        "watch": watch,
    }
    return [sys.executable, "-I", "-S", str(CHILD), json.dumps(spec)]


def service_environment() -> dict[str, str]:
    """The caller's environment without what would steer the services behind our back (PGPORT, LC_ALL and the like)."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LD_PRELOAD"))}
    return {**kept, "LANG": "C", "TZ": "UTC"}


def spawn(
    argv: list[str],
    identity: Identity = Identity(),
    *,
    output: IO[Any] | int,
    die_signal: int = signal.SIGTERM,
    env: Mapping[str, str] | None = None,
    cwd: str | Path = "/",
    keep: tuple[int, ...] = (),
    watch: bool = False,
) -> Child:
    """Starts `argv` in a session of its own (Ctrl-C reaches only the launcher) so that it gets `die_signal` when this
    process dies, however it dies. `keep`: descriptors that it inherits. Main thread only: the kernel ties the request
    to the thread that started the child.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("services are started from the main thread, which lives as long as the process")
    return subprocess.Popen(
        spec_argv(argv, identity, die_signal, watch=watch),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=service_environment() if env is None else dict(env),
        cwd=cwd,
        start_new_session=True,
        pass_fds=keep,
    )


def run(argv: list[str], identity: Identity, timeout: float = 120) -> subprocess.CompletedProcess[bytes]:
    """Runs a short program as `identity` and returns its exit and output; never raises for its failure."""
    return subprocess.run(
        spec_argv(argv, identity, signal.SIGKILL),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=service_environment(),
        cwd="/",
        timeout=timeout,
        check=False,
    )


def stop(child: Child, first: int, grace: float) -> int:
    """Ends a child: `first`, and SIGKILL when it still lives after `grace` seconds. Returns its exit status."""
    if child.poll() is None:
        child.send_signal(first)
        try:
            return child.wait(grace)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


def tail(path: Path, lines: int = 15) -> str:
    """The end of a log, for an error text."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def wait_until(condition: Any, seconds: float, step: float = 0.02) -> bool:
    """Looks until `condition()` is true, for at most `seconds`; returns whether it became true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step)
    return True
