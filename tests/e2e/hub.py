"""The test's end of the scripted agents: every launch is recorded here, and each can be told what to do."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.support.waits import until

SCRIPT = Path(__file__).with_name("scripted_agent.py")


@dataclass
class Launch:
    """One process of the scripted agent."""

    hello: dict[str, Any]
    connection: socket.socket
    process: psutil.Process | None
    gone: threading.Event = field(default_factory=threading.Event)
    _answers: list[dict[str, Any]] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    @property
    def task_id(self) -> str:
        return str(self.hello["task_id"])

    @property
    def pid(self) -> int:
        return int(self.hello["pid"])

    @property
    def env(self) -> dict[str, str]:
        return dict(self.hello["env"])

    @property
    def alive(self) -> bool:
        if self.process is None:
            return False
        with contextlib.suppress(psutil.Error):
            return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE
        return False

    def do(self, order: str, *, seconds: float = 20.0, **arguments: Any) -> dict[str, Any]:
        """Give one order and wait until it is carried out; returns its answer."""
        with self._news:
            before = len(self._answers)
            self.connection.sendall((json.dumps({"do": order, **arguments}) + "\n").encode())
            assert self._news.wait_for(lambda: len(self._answers) > before or self.gone.is_set(), seconds), order
            assert len(self._answers) > before, f"the agent ended instead of doing {order}"
            return self._answers[before]

    def sh(self, script: str) -> str:
        """Run a shell script in the agent's directory and environment; its output. AssertionError when it fails."""
        answer = self.do("sh", script=script)
        assert answer["code"] == 0, f"{script}\n{answer['out']}{answer['err']}"
        return str(answer["out"])

    def say(self, text: str) -> None:
        self.do("say", text=text)

    def finish(self, text: str) -> None:
        self.do("finish", text=text)

    def fail(self, error: str, code: int = 1) -> None:
        self.do("fail", code=code, error=error)

    def heard(self, answer: dict[str, Any]) -> None:
        with self._news:
            self._answers.append(answer)
            self._news.notify_all()

    def left(self) -> None:
        self.gone.set()
        with self._news:
            self._news.notify_all()


class Hub:
    """Listens on a unix socket in `folder` (a short path). `launches` grows by one for every agent process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hub.sock"
        self.launches: list[Launch] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._begin(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # `close` alone does not wake a thread that waits in accept or recv.
        for open_socket in (self._listener, *(launch.connection for launch in self.launches)):
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=5)
        for open_socket in (self._listener, *(launch.connection for launch in self.launches)):
            open_socket.close()

    def of(self, task_id: str) -> list[Launch]:
        return [launch for launch in list(self.launches) if launch.task_id == task_id]

    def wait(self, task_id: str, seconds: float = 15.0) -> Launch:
        """The first launch for a task."""
        return until(lambda: self.of(task_id), seconds, f"agent of task {task_id} is launched")[0]

    def _begin(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._begin(self._serve, self._listener.accept()[0])

    def _serve(self, connection: socket.socket) -> None:
        launch: Launch | None = None
        with connection.makefile("r", encoding="utf-8") as lines, contextlib.suppress(OSError):
            for line in lines:
                answer = json.loads(line)
                if launch is None:
                    launch = Launch(answer, connection, _process(int(answer["pid"])))
                    self.launches.append(launch)
                else:
                    launch.heard(answer)
        if launch is not None:
            launch.left()


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid)
    return None
