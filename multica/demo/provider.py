"""The demo's "model provider": a port that cuts its first connection and answers every later one."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading


class Provider:
    """Listens on a free port of loopback while it is open. Use as a context manager."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.calls = 0
        threading.Thread(target=self._serve, name="demo-provider", daemon=True).start()

    def __enter__(self) -> Provider:
        return self

    def __exit__(self, *_error: object) -> None:
        self.listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(5)
                    connection.recv(100)
                    self.calls += 1
                    if self.calls == 1:
                        # Lingering for no time makes the close a reset, as a broken network does.
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    else:
                        connection.sendall(b"like this\n")
