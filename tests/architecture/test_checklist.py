"""A test that names a rule of the checklist names one that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.architecture.source import ROOT, modules

# Group and number of its rules, as in the project's checklist of 391 rules and the operators' rules (AD).
COUNTS = """
    Q25 C32 E12 W18 L25 T7 R18 S12 X18 V17 K20 D23 P11 Y8 N12 B4 H9 EX7 RP14 O12 G7 U6 TK1 I7 A7
    CL9 CH6 CI6 CB8 CP5 CU7 CE12 CG6 AD23
"""
GROUPS = {group: int(count) for group, count in re.findall(r"([A-Z]+)(\d+)", COUNTS)}
NAMED = re.compile(r"\b([A-Z]{1,2})-(\d{2})\b")


def docstrings(path: Path) -> str:
    """Where tests name rules; elsewhere the same letters may be data."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return "\n".join(ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds))


def test_every_named_rule_exists() -> None:
    wrong = []
    for path in modules(ROOT / "tests"):
        for group, number in NAMED.findall(docstrings(path)):
            if not 1 <= int(number) <= GROUPS.get(group, 0):
                wrong.append(f"{path.relative_to(ROOT)}: {group}-{number}")
    assert not wrong


def test_the_groups_add_up() -> None:
    assert sum(count for group, count in GROUPS.items() if group != "AD") == 391
