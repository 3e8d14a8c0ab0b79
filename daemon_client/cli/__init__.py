"""The `multica` command line. Each module has `register(subparsers)`; what is slow to import is imported when used."""

from __future__ import annotations

import json
import sys
from typing import Any


def emit(args: Any, value: Any, text: str) -> None:
    """Print an answer: as JSON when `--output json` was asked for, else as text for people."""
    as_json = getattr(args, "output", "text") == "json"
    sys.stdout.write((json.dumps(value, indent=2) if as_json else text) + "\n")


def note(text: str) -> None:
    """Something for people that is no part of the answer."""
    sys.stderr.write(text + "\n")


def add_output(parser: Any) -> None:
    parser.add_argument("--output", choices=("text", "json"), default="text", help="how to print the answer")


def add_profile(parser: Any) -> None:
    parser.add_argument(
        "--profile", default="", metavar="NAME", help="use a separate login, port and state directory of this name"
    )
