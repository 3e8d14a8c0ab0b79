"""The `multica` command.

Exit codes: 0 ok, 2 network trouble or wrong usage, 3 not logged in or not allowed, 4 not found, 5 bad input, else 1.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from daemon_client import __version__
from daemon_client.errors import DaemonError

COMMANDS = ("login", "daemon", "config", "issue", "repo", "squad")
_EPILOG = """\
first steps on a new machine:
  multica login --server-url http://localhost:8080 --token mul_...
  multica daemon start
  multica daemon status
"""


def build_parser(wanted: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="multica",
        description="Run coding agents on this machine for a Multica server, and work with its issues.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"multica {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in wanted:
        importlib.import_module(f"daemon_client.cli.{name}").register(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Errors are one line on standard error, everything with MULTICA_DEBUG set."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Only the module of the command in question is imported: an agent calls this many times in a task.
    wanted = [arguments[0]] if arguments and arguments[0] in COMMANDS else COMMANDS
    args = build_parser(wanted).parse_args(arguments)
    try:
        return int(args.run(args) or 0)
    except DaemonError as error:
        if os.environ.get("MULTICA_DEBUG"):
            raise
        sys.stderr.write(f"multica: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
