"""One Valkey of our own: a unix socket, no files, gone when the launcher is gone. Nothing in it has to survive."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path
from urllib.parse import quote

import psutil

from multica.embedded import process, runfile
from multica.embedded.errors import StartFailed
from multica.embedded.identity import Identity
from multica.embedded.postgres import rotate

READY_SECONDS = 30.0
STOP_SECONDS = 5.0
SOCKET = "valkey.sock"


class Valkey:
    """Lifecycle of one server, the same verbs as `Postgres`."""

    name = "valkey"

    def __init__(self, home: Path, sockets: Path, binary: Path, identity: Identity) -> None:
        self.identity = identity
        self.binary = binary
        self.home = home
        self.socket = sockets / SOCKET
        self.record = sockets / "valkey.json"
        self.log_file = home / "log" / "valkey.log"
        self.child: process.Child | None = None

    def url(self, database: int = 0) -> str:
        return f"unix://{quote(str(self.socket))}?db={database}"

    def start(self) -> None:
        """Starts the server and waits until it answers PING."""
        self._end_survivor()
        self.identity.own(self.log_file.parent)
        rotate(self.log_file)
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "dir": str(self.identity.own(self.home / "valkey")),
            "maxmemory": "256mb",
            "maxmemory-policy": "noeviction",
            "databases": "64",
        }
        argv = [str(self.binary)]
        for key, value in options.items():
            argv += [f"--{key}", value]
        with self.log_file.open("ab") as output:
            self.child = process.spawn(argv, self.identity, output=output, die_signal=signal.SIGTERM)
        self.record.write_text(json.dumps([self.child.pid, psutil.Process(self.child.pid).create_time()]))
        self._wait_ready()

    def stop(self) -> None:
        if self.child is not None:
            process.stop(self.child, signal.SIGTERM, STOP_SECONDS)
            self.child = None

    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def _wait_ready(self) -> None:
        assert self.child is not None
        end = time.monotonic() + READY_SECONDS
        while not self._pings():
            if self.child.poll() is not None or time.monotonic() > end:
                self.stop()
                raise StartFailed(f"Valkey does not start; {self.log_file} ends with:\n{process.tail(self.log_file)}")
            time.sleep(0.01)

    def _pings(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith(b"+PONG")
            except OSError:
                return False

    def _end_survivor(self) -> None:
        """A server that outlives its launcher for a moment deletes the socket when it ends, also the one of its
        successor: so the successor waits for its end."""
        try:
            pid, started = json.loads(self.record.read_text())
        except (OSError, ValueError):
            return
        if runfile.is_process(pid, started) and (self.child is None or self.child.pid != pid):
            psutil.Process(pid).terminate()
            if not process.wait_until(lambda: not runfile.is_process(pid, started), STOP_SECONDS):
                psutil.Process(pid).kill()
                process.wait_until(lambda: not runfile.is_process(pid, started), STOP_SECONDS)
