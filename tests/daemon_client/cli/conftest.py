"""A server that answers as it is told, for the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from daemon_client.__main__ import main

TOKEN = "mat_" + "0123456789abcdef" * 2


class Server:
    """Answers by (method, path without query): `answers[key] = (status, body, headers)`; keeps what was asked."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[tuple[int, Any, dict[str, str]]]] = {}
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        handler = type("Handler", (_Handler,), {"server_of": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def on(self, method: str, path: str, body: Any, status: int = 200, **headers: str) -> None:
        """The next answer to a request; the last one given stays."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.setdefault((method, path), []).append((status, body, named))

    def bodies(self, method: str) -> list[Any]:
        return [body for verb, _, _, body in self.asked if verb == method]

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join(5)
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_of: Server

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: what was asked is in `Server.asked`."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server_of.asked.append((self.command, self.path, dict(self.headers), body))
        known = self.server_of.answers.get(
            (self.command, self.path.partition("?")[0]), [(404, {"error": "issue not found"}, {})]
        )
        status, answer, headers = known.pop(0) if len(known) > 1 else known[0]
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """The server, and the environment of a task that talks to it; the current directory is the test's own."""
    one = Server()
    for name in ("HTTP_PROXY", "http_proxy", "MULTICA_STATE_DIR", "MULTICA_QUICK_CREATE_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "MULTICA_SERVER_URL": f"http://127.0.0.1:{one.port}",
        "MULTICA_TOKEN": TOKEN,
        "MULTICA_TASK_CONFIG_ROOT": str(tmp_path / "config"),
        "MULTICA_TASK_ID": "task-1",
        "MULTICA_AGENT_ID": "agent-1",
        "MULTICA_WORKSPACE_ID": "ws-1",
        "MULTICA_DAEMON_PORT": str(one.port),
        "HOME": str(tmp_path / "home"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield one
    one.close()


class Cli:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """(exit code, standard output, standard error) of one command."""
        try:
            code = main(list(arguments))
        except SystemExit as error:  # wrong usage
            code = int(error.code or 0)
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)
