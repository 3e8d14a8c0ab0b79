"""Strict types over the whole product, with Django's own plugin."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.source import ROOT


@pytest.mark.timeout(600)
def test_types_are_strict() -> None:
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
