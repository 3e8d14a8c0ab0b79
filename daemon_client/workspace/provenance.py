"""Small JSON files that say what a directory is: whose it is, what was checked out in it, and when its run ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from daemon_client.config import write_private
from daemon_client.protocol import ClaimedTask

MANAGED_ENV: Final = ".managed_env.json"
GC_META: Final = ".gc_meta.json"
CHECKOUTS: Final = ".checkouts.json"
TASK_CONTEXT: Final = Path(".multica") / "daemon_task_context.json"
MANAGED_BY: Final = "multica-daemon-task"

Json = dict[str, Any]
_lock = threading.Lock()


def read_json(path: Path) -> Json:
    """The object in a file; empty when it is missing or no JSON object."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: Mapping[str, object]) -> None:
    write_private(path, json.dumps(value, indent=2, sort_keys=True).encode() + b"\n")


def subject_of(task: ClaimedTask) -> Json:
    """Whom a directory belongs to: an issue or a chat of one agent. Only such a directory is ever used again."""
    subject: Json = {"workspace_id": task.workspace_id, "agent_id": task.agent_id}
    if task.chat_session_id:
        return subject | {"chat_session_id": task.chat_session_id}
    return subject | {"issue_id": task.issue_id} if task.issue_id else subject


def is_reusable_for(task: ClaimedTask, root: Path) -> bool:
    """Whether both marks of an earlier task, one inside and one outside its work directory, name this task's
    subject.
    """
    subject = subject_of(task)
    if len(subject) != 3 or not all(subject.values()):
        return False
    managed, context = read_json(root / MANAGED_ENV), read_json(root / "workdir" / TASK_CONTEXT)
    marks = (managed, context)
    return context.get("managed_by") == MANAGED_BY and all(
        mark.get(k) == v for mark in marks for k, v in subject.items()
    )


def mark(root: Path, workdir: Path, task: ClaimedTask) -> None:
    """Write both marks for this task."""
    subject = subject_of(task) | {"task_id": task.id}
    write_json(root / MANAGED_ENV, subject)
    write_json(workdir / TASK_CONTEXT, subject | {"managed_by": MANAGED_BY})


def env_root_of(path: Path) -> Path | None:
    """The environment root that a path lies in."""
    return next((parent for parent in (path, *path.parents) if (parent / MANAGED_ENV).is_file()), None)


def record_checkout(path: Path, url: str, branch: str, head: str) -> None:
    """Remember where a checkout began, so that the end of the run can tell whether anything was committed."""
    root = env_root_of(path)
    if root is None:
        return
    with _lock:
        known = read_json(root / CHECKOUTS)
        entry = known.get(str(path))
        begun = entry.get("base") if isinstance(entry, dict) and entry.get("branch") == branch else head
        write_json(root / CHECKOUTS, known | {str(path): {"url": url, "branch": branch, "base": begun}})


def gc_meta(task: ClaimedTask, *, outcome: str, unpushed: bool) -> Json:
    """What the collector needs to know about a finished directory."""
    if task.chat_session_id:
        kind: Json = {"kind": "chat", "chat_session_id": task.chat_session_id}
    elif task.autopilot_run_id:
        kind = {"kind": "autopilot_run", "autopilot_run_id": task.autopilot_run_id}
    elif task.issue_id:
        kind = {"kind": "issue", "issue_id": task.issue_id}
    else:
        kind = {"kind": "quick_create"}
    return kind | {
        "task_id": task.id,
        "workspace_id": task.workspace_id,
        "completed_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "outcome": outcome,
        "unpushed": unpushed,
    }
