"""`multica squad …`: what the leader of a squad says in its run."""

from __future__ import annotations

import argparse
from typing import Any, Final

from daemon_client.cli import add_profile, emit
from daemon_client.cli.api_client import Json, client
from daemon_client.cli.issue import resolve

OUTCOMES: Final = ("action", "no_action", "failed")


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("squad", help="for the leader of a squad")
    commands = parser.add_subparsers(dest="squad_command", metavar="COMMAND", required=True)
    text = "say what was decided about an issue"
    activity = commands.add_parser("activity", help=text, description=text[0].upper() + text[1:] + ".")
    activity.add_argument("issue", metavar="ISSUE", help="key like ABC-12, or id")
    activity.add_argument("outcome", choices=OUTCOMES)
    activity.add_argument("--reason", default="", help="one or two sentences")
    activity.add_argument("--output", choices=("text", "table", "json"), default="text", help="how to print the answer")
    add_profile(activity)
    activity.set_defaults(run=run_activity)


def run_activity(args: argparse.Namespace) -> int:
    api = client(args)
    issue = resolve(api, args.issue)
    body: Json = {"outcome": args.outcome, "reason": args.reason}
    kept = api.post(f"/api/issues/{issue.get('id')}/squad-evaluated", body)
    emit(args, kept, f"{issue.get('identifier') or args.issue}: {args.outcome}")
    return 0
