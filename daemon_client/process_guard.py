"""Parent of one agent process: keeps the whole tree of descendants in one hand and ends it, whoever dies first.

Run by path in a bare interpreter (`python -I -S process_guard.py CONTROL_FD GRACE -- argv…`), standard library only,
one thread. It is the Linux "child subreaper" of its task, so a descendant that daemonises or calls setsid is handed
to it and to nobody else: that is how two tasks of one daemon never mix up their helpers.

Promise:
* the agent runs in a session of its own with the inherited stdin, stdout, stderr, environment and directory;
* `T` on the control socket sends SIGTERM to every descendant, `K` kills every descendant until none is left;
* end of file on the control socket means that the daemon died: SIGTERM, GRACE seconds, then SIGKILL;
* when the agent ends, whatever it left behind is ended too, and this process ends the way the agent did (same exit
  code or same signal). 127 and 126 mean that the command was not found or could not be executed.
"""

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEFTOVER_GRACE = 1.0
KILL_ROUND = 0.02
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _parents_linux() -> dict[int, int]:
    """Parent of every process, zombies left out: they can neither run nor be killed."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The command may contain spaces and brackets: fields start after the last closing one.
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                parents[int(name)] = int(fields[1])
    return parents


def _parents_elsewhere() -> dict[int, int]:
    table = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
    return {int(pid): int(parent) for pid, parent in (line.split() for line in table.splitlines() if line.strip())}


def descendants(root: int) -> list[int]:
    """Living descendants of `root`, parents before children."""
    parents = _parents_linux() if sys.platform == "linux" else _parents_elsewhere()
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop(0)
        found.append(pid)
        queue.extend(children.get(pid, ()))
    return found


class Guard:
    def __init__(self, control: int, grace: float, argv: list[str]) -> None:
        self.control, self.grace, self.argv = control, grace, argv
        self.status: int | None = None
        self.child = 0
        self.deadline: float | None = None
        self.wakeup, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in FORWARDED:
            signal.signal(number, lambda *_: self.stop_softly())

    def start(self) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_agent()
        self.child = pid
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (
            0,
            1,
            2,
        ):  # or this process would keep the pipes open after the agent closed them
            os.dup2(null, stream)

    def _become_agent(self) -> None:
        try:
            os.setsid()
            # This process has one thread, so the signal really follows the guard and not a short-lived worker.
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for number in (*FORWARDED, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.execvp(self.argv[0], self.argv)
        except OSError as error:
            os.write(2, f"{self.argv[0]}: {error.strerror}\n".encode())
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    def run(self) -> None:
        while self.status is None:
            timeout = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            ready = select.select(
                [self.wakeup, *([self.control] if self.control >= 0 else [])],
                [],
                [],
                timeout,
            )[0]
            if self.wakeup in ready:
                os.read(self.wakeup, 4096)
            if self.control in ready:
                self._obey(os.read(self.control, 64))
            if self.deadline is not None and time.monotonic() >= self.deadline:
                self.kill()
            self._reap()
        self._end_leftovers()

    def _obey(self, orders: bytes) -> None:
        if not orders:
            os.close(self.control)
            self.control = -1
            self.stop_softly()
        if b"T" in orders:
            self._signal_all(signal.SIGTERM)
        if b"K" in orders:
            self.kill()

    def stop_softly(self) -> None:
        self._signal_all(signal.SIGTERM)
        self.deadline = self.deadline or time.monotonic() + self.grace

    def _signal_all(self, number: int) -> list[int]:
        pids = descendants(os.getpid())
        for pid in pids:
            try:
                os.kill(pid, number)
            except OSError:
                continue
        return pids

    def kill(self) -> None:
        """Kill until nothing is left: a child forked between the look and the signal is caught by the next round."""
        end = time.monotonic() + 10.0
        while time.monotonic() < end:
            self._signal_all(signal.SIGSTOP)  # nothing forks while the list of victims is taken
            if not self._signal_all(signal.SIGKILL):
                break
            self._reap()
            time.sleep(KILL_ROUND)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self.status = status

    def _end_leftovers(self) -> None:
        end = time.monotonic() + LEFTOVER_GRACE
        if self._signal_all(signal.SIGTERM):
            while descendants(os.getpid()) and time.monotonic() < end:
                time.sleep(KILL_ROUND)
                self._reap()
            self.kill()


def _end_like(status: int) -> None:
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def main() -> None:
    control, grace, argv = int(sys.argv[1]), float(sys.argv[2]), sys.argv[4:]
    os.set_inheritable(control, False)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    guard = Guard(control, grace, argv)
    guard.start()
    guard.run()
    _end_like(guard.status or 0)


if __name__ == "__main__":
    main()
