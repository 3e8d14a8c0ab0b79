"""`multica login`: check a personal access token with the server and keep it for the daemon and the command line."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from daemon_client import config, protocol
from daemon_client.cli import add_output, add_profile, emit
from daemon_client.errors import ConfigError, HttpError, NotAuthenticated


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "login",
        help="log this machine in with a personal access token",
        description="Log this machine in. Make a personal access token in the web pages of your server first; it "
        "starts with mul_. The daemon reads it at its next start.",
    )
    parser.add_argument(
        "--token", required=True, metavar="TOKEN", help="the token, or - to read it from standard input"
    )
    parser.add_argument("--server-url", default="", metavar="URL", help="for example http://localhost:8080")
    add_output(parser)
    add_profile(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when the token works; it is saved only then."""
    import asyncio

    if os.environ.get("MULTICA_TASK_CONFIG_ROOT"):
        raise ConfigError("login is not possible inside a task")
    token = sys.stdin.readline().strip() if args.token == "-" else args.token.strip()
    if not token.startswith((protocol.PREFIX_PERSONAL_TOKEN, protocol.PREFIX_CLOUD_TOKEN)):
        raise NotAuthenticated("a personal access token starts with mul_")
    file = config.ConfigFile.load(os.environ, args.profile)
    url = config.normalise_server_url(args.server_url) if args.server_url else config.server_url(file, os.environ)
    account, workspaces = asyncio.run(_check(url, token))
    first = next((each for each in workspaces if isinstance(each.get("id"), str)), {})
    file.values |= {"server_url": url, "token": token, "workspace_id": first.get("id", "")}
    file.save()
    who = account.get("email") or account.get("name") or "an account without a name"
    text = f"logged in to {url} as {who}; workspace: {first.get('name') or 'none yet'}\nnext: multica daemon start"
    emit(args, {"server_url": url, "account": account, "workspace_id": file.values["workspace_id"]}, text)
    return 0


async def _check(url: str, token: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from daemon_client.clock import SystemClock
    from daemon_client.transport.http import HttpClient, ServerApi

    api = ServerApi(HttpClient(url, token, SystemClock()))
    try:
        return await api.me(), await api.user_workspaces()
    except HttpError as error:
        if error.status in (401, 403):
            raise NotAuthenticated(f"{url} refuses this token: {error.body}") from error
        raise
    finally:
        await api.http.close()
