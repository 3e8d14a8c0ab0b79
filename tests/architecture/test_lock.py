"""requirements.txt is the compiled form of pyproject.toml, judged without a network."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.architecture.source import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.txt").read_text(encoding="utf-8")
ADVICE = "run `make lock`"
ENTRY = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


def declared() -> dict[str, Requirement]:
    texts = [*PROJECT["dependencies"], *(text for extra in PROJECT["optional-dependencies"].values() for text in extra)]
    return {canonicalize_name(requirement.name): requirement for requirement in map(Requirement, texts)}


def locked() -> Iterator[tuple[str, Version, str]]:
    for name, version, rest in ENTRY.findall(LOCK):
        yield canonicalize_name(name), Version(version), rest


def test_each_dependency_is_locked_inside_its_range() -> None:
    versions = {name: version for name, version, _ in locked()}
    missing = {name for name in declared() if name not in versions}
    outside = {name for name, want in declared().items() if name in versions and versions[name] not in want.specifier}
    assert not missing | outside, ADVICE


def test_nothing_is_locked_for_a_dependency_that_is_gone() -> None:
    direct = {name for name, _, rest in locked() if "multica (pyproject.toml)" in rest}
    assert direct == set(declared()), ADVICE


def test_every_locked_package_has_hashes() -> None:
    assert not [name for name, _, rest in locked() if "--hash=sha256:" not in rest], ADVICE
    assert len(list(locked())) > 50
