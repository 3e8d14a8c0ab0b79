"""A private home for each agent CLI inside the task's directory, so that the user's own dot-directories stay
untouched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from daemon_client.workspace import provenance

CLAUDE_HOME: Final = "claude-home"
CODEX_HOME: Final = "codex-home"
# Of the user's own setup: what a run may read. Everything that a run writes goes to the private home.
_CLAUDE_FILES: Final = ("settings.json", "CLAUDE.md")
_CODEX_FILES: Final = ("config.toml", "config.json", "instructions.md", "AGENTS.md")
_CLAUDE_FOLDERS: Final = ("agents", "commands", "skills", "output-styles")
_CLAUDE_STATE_KEYS: Final = ("oauthAccount", "mcpServers", "userID", "hasCompletedOnboarding", "customApiKeyResponses")
MAX_FOLDER_BYTES: Final = 20 * 1024 * 1024


def prepare_home(provider: str, root: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Make or refresh the home of a provider below `root`; returns the variables that lead the CLI to it."""
    if provider == "codex":
        return {"CODEX_HOME": str(_prepare_codex(root / CODEX_HOME, environ))}
    if provider != "claude":
        return {}
    home = root / CLAUDE_HOME
    home.mkdir(mode=0o700, exist_ok=True)
    user = Path(environ.get("CLAUDE_CONFIG_DIR") or Path(environ.get("HOME") or "/nonexistent") / ".claude")
    _copy_setup(user, home)
    _copy_state(user, home, environ)
    return {"CLAUDE_CONFIG_DIR": str(home)}


def has_session(provider: str, root: Path, session_id: str) -> bool:
    """Whether the private home still holds a conversation; True for providers that keep theirs elsewhere."""
    safe = session_id.replace("-", "").isalnum()
    if provider == "codex":
        return safe and any((root / CODEX_HOME / "sessions").rglob(f"*{session_id}.jsonl"))
    if provider != "claude":
        return True
    return safe and any((root / CLAUDE_HOME / "projects").glob(f"*/{session_id}.jsonl"))


def _copy_setup(user: Path, home: Path) -> None:
    for name in _CLAUDE_FILES:
        (home / name).unlink(missing_ok=True)
        if (user / name).is_file():
            shutil.copyfile(user / name, home / name)
    for name in _CLAUDE_FOLDERS:
        shutil.rmtree(home / name, ignore_errors=True)
        if (user / name).is_dir() and _size(user / name) <= MAX_FOLDER_BYTES:
            shutil.copytree(user / name, home / name, symlinks=False, ignore_dangling_symlinks=True, dirs_exist_ok=True)
    # A login is renewed in place, and a copy would go stale: this one file is shared with the user's own CLI.
    login, link = user / ".credentials.json", home / ".credentials.json"
    link.unlink(missing_ok=True)
    if login.is_file():
        link.symlink_to(login.resolve())


def _prepare_codex(home: Path, environ: Mapping[str, str]) -> Path:
    home.mkdir(mode=0o700, exist_ok=True)
    user = Path(environ.get("CODEX_HOME") or Path(environ.get("HOME") or "/nonexistent") / ".codex")
    for name in _CODEX_FILES:
        (home / name).unlink(missing_ok=True)
        if (user / name).is_file():
            (home / name).touch(mode=0o600)
            shutil.copyfile(user / name, home / name)
    # Renewed in place like Claude's: shared, because a copy would go stale.
    login, link = user / "auth.json", home / "auth.json"
    link.unlink(missing_ok=True)
    if login.is_file():
        link.symlink_to(login.resolve())
    return home


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _copy_state(user: Path, home: Path, environ: Mapping[str, str]) -> None:
    """Carry over who is logged in and which servers are set up; counters and histories stay behind."""
    inside = user / ".claude.json"
    source = inside if inside.is_file() else Path(environ.get("HOME") or "/nonexistent") / ".claude.json"
    known = provenance.read_json(source)
    target = home / ".claude.json"
    state: dict[str, Any] = provenance.read_json(target)
    state |= {key: known[key] for key in _CLAUDE_STATE_KEYS if key in known}
    if state:
        target.touch(mode=0o600)
        target.write_text(json.dumps(state), "utf-8")
