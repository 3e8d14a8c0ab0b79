"""Started as a program of its own between launcher and service: ties the service to the launcher, then becomes it.

`python -I -S child.py SPEC` where SPEC is JSON: `parent` (pid of the launcher), `signal` (sent to the service when the
launcher dies), `argv`, `userns` (bool), `uid`/`gid` (int or null), `watch` (bool). A program and not a function run
between fork and exec, because that is unsafe in a process with threads. Standard library only, and no package import:
it must start in milliseconds and before anything is importable for the user it becomes.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
OVERFLOW_ID = 65534


def enter_user_namespace() -> None:
    """Root becomes an unprivileged id in its own eyes, while files stay root's outside. Raises OSError when refused."""
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "user namespaces are refused here")
    for path, text in (
        ("/proc/self/setgroups", "deny"),
        ("/proc/self/uid_map", f"{OVERFLOW_ID} {uid} 1"),
        ("/proc/self/gid_map", f"{OVERFLOW_ID} {gid} 1"),
    ):
        with open(path, "w", encoding="ascii") as handle:
            handle.write(text)


def drop_to(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def die_with(parent: int, number: int) -> None:
    """Asks the kernel for `number` when the launcher ends. After every change of ids, which would clear the request."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the request was made
        os._exit(1)


def watch(parent: int, number: int) -> None:
    """The same where the kernel has no such request (macOS): a detached process that looks five times a second."""
    service = os.getpid()
    if os.fork():
        os.wait()
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    for descriptor in range(3):
        os.close(descriptor)
    while alive(parent):
        if not alive(service):
            os._exit(0)
        time.sleep(0.2)
    try:
        os.kill(service, number)
    except ProcessLookupError:
        pass
    os._exit(0)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def main() -> None:
    spec = json.loads(sys.argv[1])
    if spec.get("userns"):
        enter_user_namespace()
    elif spec.get("uid") is not None:
        drop_to(spec["uid"], spec["gid"])
    if spec.get("watch") or not sys.platform.startswith("linux"):
        watch(spec["parent"], spec["signal"])
    else:
        die_with(spec["parent"], spec["signal"])
    # A shell starts background jobs with SIGINT ignored, and that is inherited: the service would never stop on it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execv(spec["argv"][0], spec["argv"])


if __name__ == "__main__":
    main()
