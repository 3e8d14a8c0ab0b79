"""Names made from what comes from outside: directories from repository URLs, branches from agents, refs that are
safe.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final
from urllib.parse import unquote, urlsplit

MAX_NAME: Final = 150
AGENT_SLUG_LENGTH: Final = 30
TASK_KEY_LENGTH: Final = 12

_SCP: Final = re.compile(r"^(?:(?P<user>[^@/\s:]+)@)?(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):(?!//)(?P<path>.+)$")
_SCHEMES: Final = ("http", "https", "ssh", "git", "file")
_REF: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/+@=#-]*$")


class InvalidName(ValueError):
    """A URL or ref that git must never see; the text says what is wrong with it."""


def check_url(url: str) -> str:
    """The URL itself when it names a repository by a known transport or an absolute path. Raises InvalidName."""
    cleaned = url.strip()
    if not cleaned or cleaned.startswith("-") or any(ord(char) < 32 or ord(char) == 127 for char in cleaned):
        raise InvalidName(f"{url!r} is not the URL of a repository")
    if "://" in cleaned:
        if urlsplit(cleaned).scheme.lower() not in _SCHEMES:
            raise InvalidName(f"repositories are reached by {', '.join(_SCHEMES)}, not by {urlsplit(cleaned).scheme!r}")
    elif "::" in cleaned or not (cleaned.startswith("/") or _SCP.match(cleaned)):
        raise InvalidName(f"{url!r} is neither a URL, nor host:path, nor an absolute path")
    return cleaned


def split_url(url: str) -> tuple[str, list[str]]:
    """(host, path segments) of a checked URL; the two ways to write an ssh address give the same."""
    if "://" in url:
        parts = urlsplit(url)
        host, path = parts.netloc.rpartition("@")[2].lower(), parts.path
    elif not url.startswith("/") and (scp := _SCP.match(url)):
        host, path = scp["host"].lower(), scp["path"]
    else:
        host, path = "", url
    segments = [unquote(part) for part in path.split("/") if part not in ("", ".", "..")]
    if segments and segments[-1].endswith(".git") and segments[-1] != ".git":
        segments[-1] = segments[-1][:-4]
    return host, segments


def bare_dir_name(url: str) -> str:
    """Directory name of a repository's cache: readable, the same for the same place, different for different ones."""
    host, segments = split_url(url)
    # "+" joins, so it is written differently inside a segment: "a+b" and "a/b" must not meet.
    parts = [
        re.sub(r"[^A-Za-z0-9._-]", lambda char: f"%{ord(char[0]):02X}", part) for part in (host, *segments) if part
    ]
    # A path of this machine must not meet a host that is called like its first directory.
    name = "+".join(parts) if host else "+".join(["file%3A", *parts])
    if name.startswith((".", "-")):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) > MAX_NAME:
        name = f"{name[:MAX_NAME]}~{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    return f"{name}.git"


def repo_name(url: str) -> str:
    """Name of a checkout's directory: the last part of the URL, harmless and never hidden."""
    segments = split_url(url)[1]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", segments[-1] if segments else "").strip("-.")[:80]
    return name if name and name.lower() != "git" else "repo"


def check_ref(ref: str) -> str:
    """The ref itself when git could have such a branch, tag or commit. Raises InvalidName."""
    bad = (
        ".." in ref or "//" in ref or "@{" in ref or ref.endswith(("/", ".", ".lock")) or "/." in ref or ".lock/" in ref
    )
    if len(ref) > 250 or bad or not _REF.match(ref):
        raise InvalidName(f"{ref[:100]!r} is not a branch, tag or commit")
    return ref


def task_key(task_id: str) -> str:
    """The short name of a task: the last 12 hexadecimal digits of its id."""
    digits = re.sub(r"[^0-9a-f]", "", task_id.lower())
    return (
        digits[-TASK_KEY_LENGTH:]
        if len(digits) >= TASK_KEY_LENGTH
        else hashlib.sha256(task_id.encode()).hexdigest()[:12]
    )


def agent_slug(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:AGENT_SLUG_LENGTH].strip("-")
    return slug or "agent"


def branch_name(agent_name: str, task_id: str) -> str:
    return f"agent/{agent_slug(agent_name)}/{task_key(task_id)}"
