"""Who may import whom: import-linter's contracts (pyproject.toml), and the two rules that it cannot say."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, imports, modules

PURE = [ROOT / "daemon_client/protocol.py", *modules(ROOT / "queue_app/domain"), *modules(ROOT / "cron_app/domain")]
# Known to the pure modules besides the standard library: each other, and the arithmetic of cron expressions.
PURE_MAY = ("queue_app.domain", "cron_app.domain", "daemon_client.protocol", "cronsim")
# A module of an agent family carries its name as a prefix; what has no family's name is shared by all.
FAMILIES = ("stream_json", "codex_app_server", "acp", "jsonl", "plain")
DISPATCH = "registry"


def test_import_contracts_hold() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_plain_modules_import_only_the_standard_library(path: Path) -> None:
    foreign = [
        name
        for name in imports(path)
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith(PURE_MAY)
    ]
    assert not foreign, f"{path} is imported by both sides of the wire and stays plain Python"


def family(module: str) -> str | None:
    return next((name for name in FAMILIES if module.startswith(name)), None)


def test_agent_families_do_not_import_each_other() -> None:
    wrong = []
    for path in modules(ROOT / "daemon_client/agents"):
        for name in imports(path):
            other = family(name.removeprefix("daemon_client.agents.")) if "daemon_client.agents." in name else None
            if other and other != family(path.stem) and path.stem != DISPATCH:
                wrong.append(f"{path.name} imports {name}")
    assert not wrong


def test_the_reader_of_imports_sees_all_forms() -> None:
    tree = ast.parse("import a.b\nfrom c import d\ndef f():\n    from e.f import g\n")
    assert set(imports(tree)) == {"a.b", "c", "c.d", "e.f", "e.f.g"}
