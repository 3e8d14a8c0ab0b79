"""`run.json`: what the stack that owns a state directory tells every other process on the machine.

Shape: `{"pid": int, "started": float, "owner": "up", "ready": bool, "database_url": str | null,
"redis_url": str | null, "http_url": str | null, "pids": {name: int}}`. An address is written only for a service that
the stack itself runs (null: the operator gave one, which stays out of files). `started` is the creation time of the
process `pid`, so a number that another program got later is never taken for the stack.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil

NAME = "run.json"


def write(state: Path, content: dict[str, Any]) -> None:
    """Replaces the file in one step; readers see the old or the new content, never a part."""
    me = psutil.Process()
    draft = state / f".{NAME}.{os.getpid()}"
    draft.write_text(json.dumps({"pid": me.pid, "started": me.create_time(), **content}, indent=1), encoding="utf-8")
    draft.chmod(0o600)
    draft.replace(state / NAME)


def remove(state: Path) -> None:
    (state / NAME).unlink(missing_ok=True)


def read(state: Path) -> dict[str, Any] | None:
    """The content, if the process that wrote it is alive; None for no file, a broken one or a dead stack's."""
    try:
        content = json.loads((state / NAME).read_text(encoding="utf-8"))
        alive = is_process(int(content["pid"]), float(content["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return content if alive else None


def is_process(pid: int, started: float) -> bool:
    """True when `pid` is the very process that was created at `started` (seconds since the epoch) and still runs."""
    try:
        process = psutil.Process(pid)
        # The kernel counts in hundredths of a second; the wall clock it is added to may be adjusted by a little.
        return abs(float(process.create_time()) - started) < 2 and process.status() != str(psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def service_url(state: Path, key: str) -> str:
    """Address of a service of the running stack (`database_url`, `redis_url`, `http_url`), or ''."""
    content = read(state) or {}
    return str(content.get(key) or "")
