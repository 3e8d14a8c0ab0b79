"""Size budgets: what grows past them is split while that is still cheap."""

from __future__ import annotations

import ast
from statistics import median, quantiles

from tests.architecture.source import ROOT, functions, length, modules, product

MEDIAN, P95, LIMIT, FILE_LIMIT = 10, 40, 60, 500


def test_functions_stay_short() -> None:
    sizes = dict(entry for path in product() for entry in functions(path))
    too_long = {name: size for name, size in sizes.items() if size > LIMIT}
    assert not too_long
    assert median(sizes.values()) <= MEDIAN
    assert quantiles(sizes.values(), n=20)[-1] <= P95


def test_files_stay_short() -> None:
    paths = [*product(), *modules(ROOT / "tests")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert not {name: count for name, count in lines.items() if count > FILE_LIMIT}


def test_a_docstring_costs_nothing() -> None:
    (node,) = ast.parse('def f():\n    """One\n\n    two."""\n    return 1\n').body
    assert isinstance(node, ast.FunctionDef)
    assert length(node) == 2
