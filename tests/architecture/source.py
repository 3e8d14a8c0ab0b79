"""Reads the project's own source for the tests of this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("multica", "queue_app", "cron_app", "daemon_client")


def modules(folder: Path) -> list[Path]:
    """Every Python file below, migrations left out: they are made by a program and never edited."""
    return sorted(path for path in folder.rglob("*.py") if "migrations" not in path.parts)


def product() -> list[Path]:
    return [path for package in PACKAGES for path in modules(ROOT / package)]


def imports(source: Path | ast.AST) -> Iterator[str]:
    """Names that a module imports from other packages, also inside functions; `from a import b` gives `a` and `a.b`."""
    tree = ast.parse(source.read_text(encoding="utf-8")) if isinstance(source, Path) else source
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and length of each function: lines of signature and body, without its docstring and inner functions' own."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", length(node)


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total
