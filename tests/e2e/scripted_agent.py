#!/usr/bin/env python3
"""A coding agent that does what a test tells it, step by step. Standard library only; runs as a process of its own.

    scripted_agent.py SOCKET [arguments of the CLI family]

It connects to SOCKET, says who it is (one JSON line) and obeys one JSON line at a time, each answered by one. With
`stream-json` among its arguments it speaks Claude's protocol, else it is a plain command. Its connection closes when
it dies, however it dies.
"""

# ruff: noqa: T201 (printing is what an agent does)
from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ENVIRONMENT = ("MULTICA_", "TMPDIR", "HOME", "PATH", "SECRET_FOR_TEST")
USAGE = {"input_tokens": 11, "output_tokens": 7, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3}
MODEL = "scripted-1"
HIDDEN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
while True:
    time.sleep(60)
"""


class Plain:
    """What is printed is what it says; exit status 0 is success."""

    def read_prompt(self) -> str:
        return sys.stdin.read()

    def say(self, text: str) -> None:
        print(text, flush=True)

    def finish(self, text: str) -> int:
        self.say(text)
        return 0


class Claude:
    """One JSON object a line, in both directions; only a result event is an end."""

    def __init__(self) -> None:
        arguments = sys.argv[2:]
        self.resumed = arguments[arguments.index("--resume") + 1] if "--resume" in arguments else ""
        self.session = self.resumed or f"session-{os.environ['MULTICA_TASK_ID']}"
        self.messages = 0

    def read_prompt(self) -> str:
        line = json.loads(sys.stdin.readline())
        # The CLI keeps its conversations in its own home; without the file there is nothing to resume.
        kept = Path(os.environ["CLAUDE_CONFIG_DIR"]) / "projects" / "here" / f"{self.session}.jsonl"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()
        self._event(type="system", subtype="init", session_id=self.session, model=MODEL)
        return "".join(block.get("text", "") for block in line["message"]["content"])

    def say(self, text: str) -> None:
        self.messages += 1
        content = [{"type": "text", "text": text}]
        message = {
            "id": f"msg_{self.messages}",
            "role": "assistant",
            "model": MODEL,
            "content": content,
            "usage": USAGE,
        }
        self._event(type="assistant", message=message, session_id=self.session)

    def finish(self, text: str) -> int:
        self._event(type="result", subtype="success", is_error=False, result=text, session_id=self.session, usage=USAGE)
        return 0

    def _event(self, **event: Any) -> None:
        print(json.dumps(event), flush=True)


class Agent:
    def __init__(self, family: Plain | Claude, orders: socket.socket) -> None:
        self.family = family
        self.orders = orders
        self.lines = orders.makefile("rw", encoding="utf-8")

    def introduce(self) -> None:
        self.answer(
            task_id=os.environ.get("MULTICA_TASK_ID", ""),
            pid=os.getpid(),
            cwd=os.getcwd(),
            argv=sys.argv,
            prompt=self.family.read_prompt(),
            resumed=getattr(self.family, "resumed", ""),
            env={key: value for key, value in os.environ.items() if key.startswith(ENVIRONMENT)},
        )

    def answer(self, **fields: Any) -> None:
        self.lines.write(json.dumps(fields) + "\n")
        self.lines.flush()

    def obey(self) -> int:
        """Until an order ends the agent; the test's end of the connection going away does too."""
        for line in self.lines:
            order = json.loads(line)
            name = order.pop("do")
            if name in ("finish", "fail"):
                self.answer(ok=True)
                return int(getattr(self, name)(**order))
            self.answer(**getattr(self, name)(**order))
        return 3

    def say(self, text: str) -> dict[str, Any]:
        self.family.say(text)
        return {}

    def finish(self, text: str) -> int:
        return self.family.finish(text)

    def fail(self, code: int, error: str) -> int:
        print(error, file=sys.stderr, flush=True)
        return code

    def sh(self, script: str) -> dict[str, Any]:
        done = subprocess.run(
            ["sh", "-ec", script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        return {"code": done.returncode, "out": done.stdout, "err": done.stderr}

    def ignore_term(self) -> dict[str, Any]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return {}

    def hide_child(self) -> dict[str, Any]:
        """A grandchild in a session of its own that ignores SIGTERM and whose parent has ended."""
        script = f"import subprocess,sys\nprint(subprocess.Popen([sys.executable,'-I','-S','-c',{HIDDEN!r}]).pid)"
        command = [sys.executable, "-I", "-S", "-c", script]
        # stdout of the grandchild is the pipe of its parent: wait for the line, not for the end of the pipe.
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        child.wait()
        return {"pid": pid}

    def leave_child(self) -> dict[str, Any]:
        """A child that keeps the agent's output open long after the agent has ended."""
        return {"pid": subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL).pid}

    def note_term(self, path: str) -> dict[str, Any]:
        """On SIGTERM write a file and end: what a well-behaved tool does with its grace."""

        def tidy(_number: int, _frame: object) -> None:
            with open(path, "w", encoding="utf-8") as file:
                file.write("tidied")
            os._exit(0)

        signal.signal(signal.SIGTERM, tidy)
        return {}


def main() -> int:
    orders = socket.socket(socket.AF_UNIX)
    orders.connect(sys.argv[1])
    agent = Agent(Claude() if "stream-json" in sys.argv else Plain(), orders)
    agent.introduce()
    return agent.obey()


if __name__ == "__main__":
    sys.exit(main())
