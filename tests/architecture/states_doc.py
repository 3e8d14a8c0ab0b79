"""Draws docs/states.md from the edge table: `python -m tests.architecture.states_doc` (or `make docs`) writes it."""

from __future__ import annotations

from queue_app.domain.states import EDGES, TERMINAL, Edge
from tests.architecture.source import ROOT

PATH = ROOT / "docs" / "states.md"
HEAD = """# States of a task

Made from `queue_app/domain/states.py` by `make docs`; a test fails when it is stale. A terminal row never changes its
status: a retry or rerun is a new row.
"""


def render() -> str:
    return "\n".join([HEAD, "```mermaid", "stateDiagram-v2", *arrows(), "```", "", *table(), ""])


def arrows() -> list[str]:
    drawn: dict[tuple[str, str], list[str]] = {}
    for edge in EDGES.values():
        if edge.target is not None:
            for source in sorted(edge.sources) or ["[*]"]:
                drawn.setdefault((str(source), str(edge.target)), []).append(edge.verb)
    ends = [f"    {status} --> [*]" for status in sorted(TERMINAL)]
    return [f"    {source} --> {target}: {', '.join(verbs)}" for (source, target), verbs in drawn.items()] + ends


def table() -> list[str]:
    rows = ["| verb | from | to | who |", "| --- | --- | --- | --- |"]
    for edge in EDGES.values():
        rows.append(f"| `{edge.verb}` | {sources(edge)} | {edge.target or 'the same'} | {edge.who} |")
    return rows


def sources(edge: Edge) -> str:
    return ", ".join(sorted(edge.sources)) or "new row"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
