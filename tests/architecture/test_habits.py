"""Habits of the tests themselves: no waiting for time to pass, no stand-ins for what can be run for real."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, imports, modules

TESTS = [path for path in modules(ROOT / "tests") if "support" not in path.parts]


def sleeps(path: Path) -> list[int]:
    """Lines that sleep for a time. `asyncio.sleep(0)` only yields to the loop and is allowed."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "sleep":
            continue
        zero = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        if not zero:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_wait_on_conditions(path: Path) -> None:
    assert not sleeps(path), "wait with tests.support.wait, on a condition and for a bounded time"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_use_the_real_thing(path: Path) -> None:
    assert not [name for name in imports(path) if name.startswith("unittest.mock")]
