"""What the documents say is what the code does."""

from __future__ import annotations

import re

from multica import env
from tests.architecture.source import ROOT, product

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_window_is_described_with_its_default() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    described = dict(re.findall(r"^\| `([A-Z_]+)` \| ([\d.]+)", text, re.MULTILINE))
    described_by_number = {**env.WINDOWS, **env.UNSCALED, **env.COUNTS, **env.SWITCHES}
    real = {name: f"{value:g}" for name, value in described_by_number.items()}
    assert {name: f"{float(value):g}" for name, value in described.items()} == real


def test_every_variable_of_the_wiring_is_in_the_readme() -> None:
    files = [path for path in product() if path.is_relative_to(ROOT / "multica")]
    named = {name for path in files for name in re.findall(r"\"(MULTICA_[A-Z_]+)\"", path.read_text(encoding="utf-8"))}
    private = {"MULTICA_ROLE"}
    assert not {name for name in named - private if f"`{name}`" not in README}


def test_the_two_commands_of_the_readme_are_what_ci_runs() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"make {word}" in README and f"\n{word}:" in makefile for word in ("demo", "test", "up"))
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
