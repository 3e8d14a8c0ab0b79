"""The environment of an agent process: the machine's own without the daemon's, plus what its task gives it."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from daemon_client.agents.redact import CUSTOM_NAMES_VARIABLE
from daemon_client.protocol import ClaimedTask
from daemon_client.workspace.repo_names import agent_slug

# Set by a Claude Code that the daemon itself was started from; they would make the agent believe it runs inside it.
_FOREIGN: Final = re.compile(
    r"MULTICA_.*|CLAUDECODE(_.*)?|CLAUDE_CODE_(ENTRYPOINT|EXECPATH|SESSION_ID|SSE_PORT)|GIT_(DIR|WORK_TREE|INDEX_FILE|PREFIX)"
)
# What an agent's own settings may not change: identity, isolation, and where the CLIs keep their state.
_BLOCKED: Final = re.compile(
    r"MULTICA_.*|HOME|PATH|USER|SHELL|TERM|TMPDIR|TMP|TEMP|CLAUDE_CONFIG_DIR|CODEX_HOME|REASONIX_STATE_HOME|CURSOR_DATA_DIR"
    r"|CURSOR_MCP_AUTH_SOURCE|OPENCLAW_CONFIG_PATH|OPENCLAW_INCLUDE_ROOTS"
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PACKAGE_PARENT: Final = Path(__file__).resolve().parents[2]


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not _FOREIGN.fullmatch(name)}


def custom(task: ClaimedTask) -> dict[str, str]:
    """The agent's own variables, without blocked and impossible ones."""
    given = task.agent.get("custom_env")
    entries = given.items() if isinstance(given, dict) else ()
    return {
        name: value
        for name, value in entries
        if isinstance(value, str) and _NAME.fullmatch(name) and not _BLOCKED.fullmatch(name) and "\0" not in value
    }


def task_block(
    task: ClaimedTask, *, root: Path, config: Path, tmp: Path, port: int, server_url: str, slot: int
) -> dict[str, str]:
    """Who the agent is and how it reaches the server and the daemon."""
    block = {
        "MULTICA_TOKEN": task.auth_token.strip(),
        "MULTICA_TASK_CONFIG_ROOT": str(config),
        "MULTICA_TASK_WORKSPACES_ROOT": str(root),
        "MULTICA_SERVER_URL": server_url,
        "MULTICA_DAEMON_PORT": str(port),
        "MULTICA_WORKSPACE_ID": task.workspace_id,
        "MULTICA_AGENT_NAME": task.agent_name,
        "MULTICA_AGENT_ID": task.agent_id,
        "MULTICA_TASK_ID": task.id,
        "MULTICA_TASK_SLOT": str(slot),
        "TMPDIR": str(tmp),
        "TMP": str(tmp),
        "TEMP": str(tmp),
    }
    conditional = {
        "MULTICA_AUTOPILOT_RUN_ID": task.autopilot_run_id,
        "MULTICA_AUTOPILOT_ID": _text(task.raw.get("autopilot_id")),
        "MULTICA_QUICK_CREATE_TASK_ID": task.id if task.quick_create_prompt else "",
        "MULTICA_QUICK_CREATE_ATTACHMENT_IDS": _json_list(task.raw.get("quick_create_attachment_ids")),
    }
    return block | {name: value for name, value in conditional.items() if value}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _json_list(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list) and value else ""


def compose(
    task: ClaimedTask,
    block: Mapping[str, str],
    homes: Mapping[str, str],
    *,
    environ: Mapping[str, str],
    commands: Path,
    has_identity: bool,
) -> dict[str, str]:
    """Everything together, later entries win: machine, task, PATH, git identity, the agent's own, provider homes.

    `has_identity`: the user has a git identity; without one commits are made in the agent's name.
    """
    env = inherited(environ)
    env.setdefault("GIT_TERMINAL_PROMPT", "0")
    if not has_identity:
        env |= git_identity(task.agent_name)
    env |= block
    env["PATH"] = os.pathsep.join([str(commands), environ.get("PATH", os.defpath)])
    own = custom(task)
    return {**env, **own, **homes, CUSTOM_NAMES_VARIABLE: ",".join(own)}


def git_identity(agent_name: str) -> dict[str, str]:
    name, email = agent_name or "agent", f"{agent_slug(agent_name)}@agents.invalid"
    return {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", name), ("EMAIL", email))
    }


def ensure_command(folder: Path) -> Path:
    """A directory with nothing but the `multica` command of this very daemon, to put in front of PATH.

    The daemon's own directory would also bring its Python, and agents must get the machine's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    where = f"import sys; sys.path.insert(0, {str(_PACKAGE_PARENT)!r})"
    code = f"{where}; from daemon_client.__main__ import main; sys.exit(main())"
    script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -c {shlex.quote(code)} "$@"\n'
    path = folder / "multica"
    if not path.is_file() or path.read_text("utf-8") != script:
        # Tasks are prepared side by side, so each writes a draft of its own.
        handle, draft = tempfile.mkstemp(prefix=".multica.", dir=folder)
        temporary = Path(draft)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script)
        temporary.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        temporary.replace(path)
    return folder
