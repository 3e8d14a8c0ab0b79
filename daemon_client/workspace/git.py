"""Runs git for the daemon: never asks anybody anything, never runs for ever, never changes the user's configuration."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COMMAND_TIMEOUT: Final = 600.0
KILL_PATIENCE: Final = 2.0
TEXT_LIMIT: Final = 2000
# What a git hook leaves in the environment would point every command at the repository of the hook.
_LOCAL_VARIABLES: Final = frozenset(
    {
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_NAMESPACE",
        "GIT_PREFIX",
        "GIT_CEILING_DIRECTORIES",
        "GIT_QUARANTINE_PATH",
        "SSH_ASKPASS",
    }
)
_SETTINGS: Final = (
    # The cache may belong to another user than the process, for instance under a container's root.
    ("safe.directory", "*"),
    # A connection that moves nothing for a minute is dead, whatever TCP believes.
    ("http.lowSpeedLimit", "100"),
    ("http.lowSpeedTime", "60"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("advice.detachedHead", "false"),
)


class GitError(Exception):
    """A git command failed. `stderr` is the end of what it said, without credentials of URLs."""

    def __init__(self, arguments: tuple[str, ...], code: int, stderr: str) -> None:
        self.code, self.stderr = code, stderr
        super().__init__(f"git {arguments[0]} failed: {stderr.strip() or f'exit code {code}'}")

    def says(self, *phrases: str) -> bool:
        lowered = self.stderr.lower()
        return any(phrase in lowered for phrase in phrases)


@dataclass(frozen=True)
class GitOutput:
    stdout: str
    stderr: str


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment of every git command: no prompt anywhere, and only transports that move repositories."""
    env = {name: value for name, value in base.items() if name not in _LOCAL_VARIABLES}
    env |= {"GIT_TERMINAL_PROMPT": "0", "GCM_INTERACTIVE": "never", "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
    # ext:: and fd:: run commands, and a repository's URL comes from outside.
    env["GIT_ALLOW_PROTOCOL"] = "file:git:http:https:ssh"
    env.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes -oConnectTimeout=20")
    offset = int(env["GIT_CONFIG_COUNT"]) if env.get("GIT_CONFIG_COUNT", "").isdigit() else 0
    for index, (key, value) in enumerate(_SETTINGS, start=offset):
        env[f"GIT_CONFIG_KEY_{index}"], env[f"GIT_CONFIG_VALUE_{index}"] = key, value
    env["GIT_CONFIG_COUNT"] = str(offset + len(_SETTINGS))
    return env


class Git:
    """Commands with the user's own configuration and credentials helpers, added settings only for their own time."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._env = environment(os.environ if environ is None else environ)

    async def run(self, *arguments: str, cwd: Path | None = None, timeout: float = COMMAND_TIMEOUT) -> GitOutput:
        """Run one command. Raises GitError when it fails or exceeds `timeout` seconds. Cancelling ends it."""
        process = await asyncio.create_subprocess_exec(
            "git",
            *arguments,
            cwd=cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # without a terminal, ssh and helpers cannot ask on it
        )
        try:
            async with asyncio.timeout(timeout):
                stdout, stderr = await process.communicate()
        except TimeoutError:
            raise GitError(arguments, -1, f"no end after {timeout:g} s") from None
        finally:
            if process.returncode is None:
                await _end(process)
        text = _without_credentials(stderr.decode("utf-8", "replace"))[-TEXT_LIMIT:]
        if process.returncode:
            raise GitError(arguments, process.returncode or -1, text)
        return GitOutput(stdout.decode("utf-8", "replace"), text)

    async def out(self, *arguments: str, cwd: Path | None = None) -> str:
        """Standard output of a command, without blanks around it."""
        return (await self.run(*arguments, cwd=cwd)).stdout.strip()

    async def ok(self, *arguments: str, cwd: Path | None = None) -> bool:
        """Whether a command succeeds."""
        try:
            await self.run(*arguments, cwd=cwd)
        except GitError:
            return False
        return True


async def _end(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            async with asyncio.timeout(KILL_PATIENCE):
                await process.wait()
                return
        except TimeoutError:
            continue


def _without_credentials(text: str) -> str:
    from daemon_client.agents.redact import Redactor

    return Redactor().text(text)
