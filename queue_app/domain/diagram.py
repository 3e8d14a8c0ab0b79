"""The state machine as a page of the docs, made from the edge table."""

from __future__ import annotations

from .states import EDGES, TERMINAL, Status

_HEAD = """# States of a task

Made from `queue_app/domain/states.py`; a test compares. Each verb is one guarded statement in
`queue_app/transitions.py`, and a trigger in the database refuses every edge that is not here.
"""


def page() -> str:
    """The whole page: a diagram and the table of verbs."""
    return "\n".join([_HEAD, *_diagram(), "", *_table(), ""])


def _diagram() -> list[str]:
    moves: dict[tuple[str, str], list[str]] = {}
    for edge in EDGES.values():
        for source in [str(status) for status in sorted(edge.sources)] or ["[*]"]:
            if edge.target is not None:
                moves.setdefault((source, edge.target), []).append(edge.verb)
    lines = [f"    {source} --> {target}: {', '.join(verbs)}" for (source, target), verbs in sorted(moves.items())]
    ends = [f"    {status} --> [*]" for status in sorted(TERMINAL)]
    return ["```mermaid", "stateDiagram-v2", *lines, *ends, "```"]


def _table() -> list[str]:
    rows = ["| verb | from | to | who |", "| --- | --- | --- | --- |"]
    for edge in EDGES.values():
        sources = ", ".join(status for status in Status if status in edge.sources) or "(makes the row)"
        rows.append(f"| {edge.verb} | {sources} | {edge.target or 'same'} | {edge.who} |")
    return rows
