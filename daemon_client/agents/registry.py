"""Which agent CLIs are on this machine, and which family drives each. A new CLI of a known family is one descriptor."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from daemon_client.agents.base import Adapter
from daemon_client.agents.codex_app_server import CodexAdapter
from daemon_client.agents.plain import PlainAdapter
from daemon_client.agents.stream_json import StreamJsonAdapter
from daemon_client.config import DaemonSettings

PROBE_TIMEOUT: Final = 10.0
PROBE_WORKERS: Final = 8
RETRY_PAUSE: Final = 0.5
# A probe that took this long will not do better at once.
SLOW_PROBE: Final = 1.0

BELOW_MINIMUM: Final = "below_minimum"
NOT_EXECUTABLE: Final = "not_executable"
NOT_FOUND: Final = "not_found"
UNAVAILABLE: Final = "unavailable"

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True)
class Descriptor:
    """One CLI: its provider id, command, family and what its family needs to know to prepare a directory for it."""

    provider: str
    command: str
    family: str
    minimum: tuple[int, int, int] | None = None
    display_name: str = ""
    brief_file: str = "AGENTS.md"
    skills_dir: str = ".agent_context/skills"

    @property
    def label(self) -> str:
        return self.display_name or self.provider[:1].upper() + self.provider[1:]


DESCRIPTORS: Final = {
    descriptor.provider: descriptor
    for descriptor in (
        Descriptor(
            "claude",
            "claude",
            "claude",
            minimum=(2, 0, 0),
            brief_file="CLAUDE.md",
            skills_dir=".claude/skills",
        ),
        Descriptor("codex", "codex", "codex", minimum=(0, 100, 0), skills_dir=".agents/skills"),
    )
}
_PLAIN: Final = Descriptor("plain", "", "plain", display_name="Command")
_FAMILIES: Final[Mapping[str, Callable[[], Adapter]]] = {
    "claude": StreamJsonAdapter,
    "codex": CodexAdapter,
    "plain": PlainAdapter,
}
FAMILIES: Final = tuple(_FAMILIES)


@dataclass(frozen=True)
class Detected:
    """One CLI that was looked for. Usable when `skipped_reason` is empty; `detail` then or otherwise is for people."""

    provider: str
    path: str = ""
    version: str = ""
    skipped_reason: str = ""
    detail: str = ""
    display_name: str = ""

    @property
    def usable(self) -> bool:
        return not self.skipped_reason


def descriptor_for(provider: str) -> Descriptor:
    """The descriptor of a provider id or family; unknown ones are treated like a plain command."""
    return DESCRIPTORS.get(provider, _PLAIN)


def adapter_for(provider: str) -> Adapter:
    """The adapter of a provider id, or of the family of a runtime profile. Raises KeyError for an unknown one."""
    known = DESCRIPTORS.get(provider)
    return _FAMILIES[known.family if known else provider]()


def display_name(provider: str) -> str:
    return descriptor_for(provider).label if provider in DESCRIPTORS else provider[:1].upper() + provider[1:]


Which = Callable[[str, Mapping[str, str]], str | None]


def find_executable(command: str, environ: Mapping[str, str]) -> str | None:
    """Absolute path of a command. A name with a slash must exist; wrappers in `~/.multica/hooks` are passed over."""
    if os.sep in command:
        path = Path(command).expanduser()
        return str(path.absolute()) if os.access(path, os.X_OK) and path.is_file() else None
    hooks = Path(environ.get("HOME") or "/") / ".multica" / "hooks"
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder or ".") / command
        if path.parent != hooks and path.is_file() and os.access(path, os.X_OK):
            return str(path.absolute())
    return None


def detect(settings: DaemonSettings, which: Which = find_executable) -> list[Detected]:
    """Look for every CLI that this daemon can drive and ask each for its version, in parallel; sorted by provider.

    Never raises. Takes at most two probes of 10 s. Blocking: call it in a thread.
    """
    environ = settings.environ or dict(os.environ)
    with ThreadPoolExecutor(PROBE_WORKERS, thread_name_prefix="probe") as pool:
        found = pool.map(lambda one: _detect_one(one, settings, environ, which), DESCRIPTORS.values())
        return sorted(found, key=lambda one: one.provider)


def _detect_one(one: Descriptor, settings: DaemonSettings, environ: Mapping[str, str], which: Which) -> Detected:
    chosen = settings.agent_setting(one.provider, "PATH") or one.command
    path = which(chosen, environ)
    if path is None:
        return Detected(
            one.provider,
            skipped_reason=NOT_FOUND,
            detail=f"{chosen} was not found",
            display_name=one.label,
        )
    version, reason, detail = probe([path], environ, one.minimum)
    return Detected(one.provider, path, version, reason, detail, one.label)


def detect_profile(command: str, environ: Mapping[str, str]) -> Detected:
    """A command of a runtime profile: whether it is there.

    It is never run to find out. Such a command may be anything, and one that ignores its arguments would do its whole
    work outside of any task.
    """
    path = find_executable(command, environ)
    if path is None:
        return Detected("", skipped_reason=NOT_FOUND, detail=f"{command} was not found on this machine")
    return Detected("", path)


def probe(
    argv: Sequence[str],
    environ: Mapping[str, str],
    minimum: tuple[int, int, int] | None,
) -> tuple[str, str, str]:
    """(version, reason, detail) of `argv --version`; the reason is empty when the CLI can be used."""
    version, reason, detail, took = _probe_once(argv, environ)
    if reason and took < SLOW_PROBE:
        threading.Event().wait(RETRY_PAUSE)  # a CLI that is just being upgraded is there again in a moment
        version, reason, detail, _ = _probe_once(argv, environ)
    if reason or minimum is None:
        return version, reason, detail
    numbers = parse_version(version)
    if numbers is None:
        return (
            version,
            UNAVAILABLE,
            f"{argv[0]} tells no version that can be compared: {version[:80]!r}",
        )
    if numbers < minimum:
        wanted = ".".join(map(str, minimum))
        return (
            version,
            BELOW_MINIMUM,
            f"version {version} is below {wanted}; upgrade {argv[0]}",
        )
    return version, "", ""


def _probe_once(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str, str, float]:
    started = time.monotonic()
    try:
        code, output = _run_bounded([*argv, "--version"], environ)
    except subprocess.TimeoutExpired:
        reason, detail = UNAVAILABLE, f"{argv[0]} --version did not answer within {PROBE_TIMEOUT:g} s"
        return "", reason, detail, time.monotonic() - started
    except OSError as error:
        reason = NOT_EXECUTABLE if error.errno == errno.ENOEXEC else UNAVAILABLE
        return "", reason, f"{argv[0]} cannot be executed: {error.strerror}", time.monotonic() - started
    took = time.monotonic() - started
    if code:
        return "", UNAVAILABLE, f"{argv[0]} --version ended with code {code}", took
    return version_line(output.decode("utf-8", "replace")), "", "", took


def _run_bounded(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, bytes]:
    """(exit code, stdout). Whatever the command started in its group is gone when this returns or raises."""
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=PROBE_TIMEOUT)
        return process.returncode, output
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def version_line(output: str) -> str:
    """The first line that holds a version, else the whole text, at most 200 characters."""
    lines = [line.strip() for line in output.splitlines()]
    return next((line for line in lines if _VERSION.search(line)), output.strip())[:200]


def parse_version(text: str) -> tuple[int, int, int] | None:
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
