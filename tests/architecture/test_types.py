"""Strict types over the whole product, with Django's own plugin."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.architecture.source import ROOT


@pytest.mark.timeout(600)
def test_types_are_strict() -> None:
    status, words = mypy()
    if status:
        # A module that is newer than the cache of its package is reported as missing: only a cold look is believed.
        status, words = mypy("--cache-dir", os.devnull)
    assert status == 0, words


def mypy(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr
