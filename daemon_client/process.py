"""Agent processes: start under a guard, read lines, end the whole tree, find survivors of a daemon that was killed.

Each agent runs below `process_guard.py`. The guard adopts every descendant (also after setsid or a double fork),
watches the daemon through a socket that closes with it whichever thread started the agent, and mirrors the agent's
exit status. What escapes even that carries a marker in its environment. Started trees are written to
`<workspaces_root>/processes.json`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

MAX_LINE: Final = 32 * 1024 * 1024
STDERR_TAIL: Final = 8192
CHUNK: Final = 256 * 1024
# How long ending a tree may take after SIGKILL before the guard itself is given up.
KILL_WAIT: Final = 12.0
ORPHAN_GRACE: Final = 3.0
RECORDS: Final = "processes.json"
OWNER_VARIABLE: Final = "MULTICA_PROCESS_OWNER"
TASK_VARIABLE: Final = "MULTICA_TASK_ID"
ROOT_VARIABLE: Final = "MULTICA_TASK_WORKSPACES_ROOT"
GUARD: Final = Path(__file__).with_name("process_guard.py")


class LineTooLong(Exception):
    """One line of output is larger than the limit; the stream cannot be understood any further."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the agent wrote a single line of more than {limit} bytes")


async def read_lines(stream: asyncio.StreamReader, limit: int = MAX_LINE) -> AsyncIterator[bytes]:
    """Lines without their end, the unfinished last one included. Raises LineTooLong; memory stays near `limit`."""
    pending = bytearray()
    while chunk := await stream.read(CHUNK):
        searched = len(pending)
        pending += chunk
        start = 0
        while (end := pending.find(b"\n", max(start, searched))) >= 0:
            yield bytes(pending[start:end]).rstrip(b"\r")
            start = end + 1
        del pending[:start]
        if len(pending) > limit:
            raise LineTooLong(limit)
    if pending:
        yield bytes(pending)


class ManagedProcess:
    """One agent under its guard. `pid` is the guard's, `returncode` the agent's (negative: ended by that signal)."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        pipes: tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader],
        control: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        records: Records | None,
        task_id: str,
    ) -> None:
        self._popen = popen
        self.stdin, self.stdout, self._stderr_stream = pipes
        self._orders = control[1]
        self._records, self._task_id = records, task_id
        self._stderr = bytearray()
        self._told_to_die = False
        self._collector = asyncio.create_task(self._collect_stderr())
        self._ending = asyncio.create_task(self._watch(control[0]))

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        return self._popen.returncode

    async def lines(self, limit: int = MAX_LINE) -> AsyncIterator[bytes]:
        """Lines of stdout until its end; see `read_lines`."""
        async for line in read_lines(self.stdout, limit):
            yield line

    async def write(self, data: bytes) -> None:
        """Write to stdin and wait until the agent took it. Raises OSError when the agent no longer reads."""
        self.stdin.write(data)
        await self.stdin.drain()

    def close_stdin(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self.stdin.close()

    async def stderr_tail(self) -> str:
        """The last 8 KiB of stderr. After the end of the process it waits a moment for what is still in the pipe."""
        if self.returncode is not None:
            await asyncio.wait({self._collector}, timeout=2.0)
        return self._stderr.decode("utf-8", "replace")

    async def wait(self) -> int:
        """Until the agent and all that it started are gone; returns the agent's exit code. May be awaited often."""
        return await asyncio.shield(self._ending)

    def order(self, letter: bytes) -> None:
        """Send one order to the guard (`T` or `K`); a guard that has gone needs none."""
        self._told_to_die = self._told_to_die or letter == b"K"
        with contextlib.suppress(OSError, RuntimeError):
            self._orders.write(letter)

    def kill_guard(self) -> None:
        """Last resort against a guard that does not obey: its descendants first, then itself."""
        for pid in _tree(self.pid):
            _signal(pid, signal.SIGKILL)
        self._popen.kill()

    async def release(self) -> None:
        """Let go of pipes and readers; call after `wait`. Idempotent."""
        self.close_stdin()
        self._orders.close()
        for task in (self._collector, self._ending):
            task.cancel()
        await asyncio.gather(self._collector, self._ending, return_exceptions=True)
        for stream in (self.stdout, self._stderr_stream):
            stream._transport.close()  # type: ignore[attr-defined]

    async def _collect_stderr(self) -> None:
        """Keep reading to the end whatever happens: a full pipe would stop the agent."""
        while chunk := await self._stderr_stream.read(CHUNK):
            self._stderr += chunk
            del self._stderr[: max(0, len(self._stderr) - STDERR_TAIL)]

    async def _watch(self, control: asyncio.StreamReader) -> int:
        with contextlib.suppress(OSError):
            await control.read()
        code = await asyncio.to_thread(self._popen.wait)
        if code == -signal.SIGKILL and not self._told_to_die:
            # Somebody killed the guard itself: what had left its group now belongs to init, but still has its marker.
            await asyncio.to_thread(_kill_marked, {_owner()}, self._task_id)
        if self._records is not None:
            self._records.remove(self.pid)
        return code


async def spawn(
    argv: Sequence[str],
    *,
    cwd: Path | str,
    env: Mapping[str, str],
    orphan_grace: float = ORPHAN_GRACE,
) -> ManagedProcess:
    """Start an agent. Raises FileNotFoundError, PermissionError or NotADirectoryError as the system says.

    `env` is the whole environment of the agent. When it names a workspaces root the tree is recorded there. Without a
    living daemon the tree gets SIGTERM and, `orphan_grace` seconds later, SIGKILL.
    """
    environment = {**env, OWNER_VARIABLE: _owner()}
    program = find_program(argv[0], environment)
    ours, theirs = socket.socketpair()
    command = [
        sys.executable,
        "-I",
        "-S",
        str(GUARD),
        str(theirs.fileno()),
        str(orphan_grace),
        "--",
        program,
        *argv[1:],
    ]
    try:
        # Forking blocks for a moment either way; waiting and reading do not.
        popen = subprocess.Popen(  # noqa: ASYNC220
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            bufsize=0,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    root = env.get(ROOT_VARIABLE)
    records = Records(Path(root)) if root and Path(root).is_dir() else None
    if records is not None:
        records.add(popen.pid, env.get(TASK_VARIABLE, ""))
    pipes = await _connect_pipes(popen)
    return ManagedProcess(
        popen,
        pipes,
        await asyncio.open_connection(sock=ours),
        records,
        env.get(TASK_VARIABLE, ""),
    )


def find_program(name: str, env: Mapping[str, str]) -> str:
    """The absolute path that `name` stands for. Raises FileNotFoundError when there is none to execute."""
    candidates = (
        [Path(name)]
        if os.sep in name
        else [Path(part) / name for part in env.get("PATH", "").split(os.pathsep) if part]
    )
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return str(path.absolute())
    raise FileNotFoundError(2, "no such executable", name)


async def _connect_pipes(
    popen: subprocess.Popen[bytes],
) -> tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader]:
    loop = asyncio.get_running_loop()

    async def reader(pipe: object) -> asyncio.StreamReader:
        stream = asyncio.StreamReader(limit=CHUNK)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        return stream

    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, popen.stdin)
    stdin = asyncio.StreamWriter(transport, protocol, None, loop)
    return stdin, await reader(popen.stdout), await reader(popen.stderr)


async def terminate_tree(process: ManagedProcess, grace: float) -> bool:
    """End an agent with all of its descendants: SIGTERM, `grace` seconds, SIGKILL.

    Returns True when the tree is known to be gone. Bounded: grace + 12 s, whatever the agent does. Safe to call on a
    process that has ended, and again.
    """
    process.order(b"T")
    if await _ended(process, grace):
        return True
    process.order(b"K")
    if await _ended(process, KILL_WAIT):
        return True
    process.kill_guard()
    return await _ended(process, 2.0)


async def _ended(process: ManagedProcess, timeout: float) -> bool:
    try:
        async with asyncio.timeout(timeout):
            await process.wait()
    except TimeoutError:
        return process.returncode is not None
    return True


# --- what a killed daemon left behind ----------------------------------------------------------------------------


def _owner(pid: int | None = None) -> str:
    """Identity of a process that survives the reuse of its number."""
    process = psutil.Process(pid)
    return f"{process.pid}:{process.create_time():.2f}"


def _alive(identity: str) -> bool:
    pid, _, created = identity.partition(":")
    try:
        # The kernel's clock tick makes two readings of one start differ in the last digits.
        process = psutil.Process(int(pid))
        same = bool(abs(process.create_time() - float(created)) < 0.05)
        return same and process.status() != psutil.STATUS_ZOMBIE  # killed, and not yet reaped
    except (psutil.Error, ValueError):
        return False


class Records:
    """`processes.json`: the guards that are running, so that the next daemon finds those whose daemon is gone."""

    _lock = threading.Lock()

    def __init__(self, root: Path) -> None:
        self._path = root / RECORDS

    def read(self) -> list[dict[str, str]]:
        """The records; a file that cannot be read holds none, because the markers find the same processes."""
        try:
            entries = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return []
        return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []

    def add(self, pid: int, task_id: str) -> None:
        with contextlib.suppress(psutil.Error):
            entry = {"process": _owner(pid), "owner": _owner(), "task_id": task_id}
            self._change(lambda entries: [*entries, entry])

    def remove(self, pid: int) -> None:
        self._change(lambda entries: [e for e in entries if not str(e.get("process")).startswith(f"{pid}:")])

    def keep_living_owners(self) -> None:
        self._change(lambda entries: [e for e in entries if _alive(str(e.get("owner")))])

    def _change(self, edit: object) -> None:
        assert callable(edit)
        with self._lock, contextlib.suppress(OSError):
            temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(json.dumps(edit(self.read())), "utf-8")
            temporary.replace(self._path)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _tree(pid: int) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def _marked(root: str | None, task_id: str | None) -> Iterable[tuple[int, str]]:
    """(pid, owner) of every process whose environment says that a daemon started it, for this root or task."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            owner = environment.get(OWNER_VARIABLE, "")
            same_root = root is None or environment.get(ROOT_VARIABLE) == root
            if owner and same_root and (task_id is None or environment.get(TASK_VARIABLE) == task_id):
                yield process.pid, owner


def _kill_marked(owners: set[str], task_id: str) -> None:
    for pid, owner in list(_marked(None, task_id)):
        if owner in owners and pid != os.getpid():
            _signal(pid, signal.SIGKILL)


def _find_survivors(root: Path) -> set[int]:
    found = {pid for pid, owner in _marked(str(root), None) if not _alive(owner)}
    for entry in Records(root).read():
        process = str(entry.get("process"))
        if _alive(process) and not _alive(str(entry.get("owner"))):
            pid = int(process.partition(":")[0])
            found |= {pid, *_tree(pid)}
    return found - {os.getpid()}


def _handles(pids: Iterable[int]) -> list[psutil.Process]:
    handles = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            handles.append(psutil.Process(pid))
    return handles


def _end_survivors(root: Path, grace: float) -> list[int]:
    ended: set[int] = set()
    number, patience = signal.SIGTERM, grace
    deadline = time.monotonic() + grace + 2 * KILL_WAIT
    # Until a look finds nobody: what is being forked or executed while one looks is seen only by the next look.
    while (pids := _find_survivors(root)) and time.monotonic() < deadline:
        ended |= pids
        for pid in pids:
            _signal(pid, number)
        psutil.wait_procs(_handles(pids), timeout=patience)
        number, patience = signal.SIGKILL, KILL_WAIT
    Records(root).keep_living_owners()
    return sorted(ended)


async def kill_survivors(workspaces_root: Path, grace: float = ORPHAN_GRACE) -> list[int]:
    """End every agent process that a dead daemon of this root left behind; returns the ids it found.

    Processes of a daemon that lives (this one included) are never touched. Call at start, before orphan recovery.
    """
    if not workspaces_root.is_dir():
        return []
    return await asyncio.to_thread(_end_survivors, workspaces_root.resolve(), grace)
