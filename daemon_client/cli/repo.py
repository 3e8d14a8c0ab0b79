"""`multica repo checkout URL`: a working copy for the agent of a task, made by the daemon on this machine."""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from daemon_client import protocol
from daemon_client.cli import emit, note
from daemon_client.cli.api_client import ApiError, Json, server_message
from daemon_client.errors import ConfigError, DecodeError, NotAuthenticated, TransportError

# A first clone may take long, and the daemon lets others wait outside meanwhile.
BUSY_BUDGET: Final = 300.0
CHECKOUT_TIMEOUT: Final = 900.0
DEFAULT_RETRY_AFTER: Final = 2.0


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("repo", help="get a repository to work in, inside a task")
    commands = parser.add_subparsers(dest="repo_command", metavar="COMMAND", required=True)
    checkout = commands.add_parser(
        "checkout",
        help="check a repository out",
        description="Check a repository of the workspace out below the current directory, on a branch of this task. "
        "Prints the directory. Asking again prints the same one.",
    )
    checkout.add_argument("url", metavar="URL", help="as it is listed in the brief of the task")
    checkout.add_argument("--ref", default="", help="branch, tag or commit to start from; default: the remote's own")
    checkout.add_argument("--output", choices=("text", "table", "json"), default="text", help="how to print the answer")
    checkout.set_defaults(run=run_checkout)


def run_checkout(args: argparse.Namespace) -> int:
    port, body = _request(os.environ, args.url, args.ref)
    answer = checkout(port, os.environ["MULTICA_TOKEN"].strip(), body)
    path = answer.get("path")
    if not isinstance(path, str) or not path:
        raise DecodeError("the daemon did not say where the checkout is")
    emit(args, answer, path)
    if args.output != "json":
        note(f"on branch {answer.get('branch_name', '')}")
    return 0


def _request(environ: Mapping[str, str], url: str, ref: str) -> tuple[int, Json]:
    """(port of the daemon, body) from the environment of the task. Raises when this is no task."""
    port, token = environ.get("MULTICA_DAEMON_PORT", ""), environ.get("MULTICA_TOKEN", "").strip()
    if not port.isdigit():
        raise ConfigError(
            "repositories are checked out by the daemon for a running task; MULTICA_DAEMON_PORT is not set here"
        )
    if not token.startswith(protocol.PREFIX_TASK_TOKEN):
        raise NotAuthenticated("checking out needs the token of a running task in MULTICA_TOKEN")
    body: Json = {
        "url": url,
        "ref": ref,
        "workdir": str(Path.cwd()),
        "workspace_id": environ.get("MULTICA_WORKSPACE_ID", ""),
        "task_id": environ.get("MULTICA_TASK_ID", ""),
        "agent_name": environ.get("MULTICA_AGENT_NAME", ""),
        "retry_busy": True,
    }
    if mode := environ.get("MULTICA_REPO_CHECKOUT_MODE"):
        body["checkout_mode"] = mode
    return int(port), body


class _Busy(Exception):
    def __init__(self, text: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(text)


def checkout(
    port: int, token: str, body: Json, *, budget: float = BUSY_BUDGET, wait: Callable[[float], None] = time.sleep
) -> Json:
    """The daemon's answer. A busy repository is asked for again as the daemon says, for `budget` seconds at most."""
    end = time.monotonic() + budget
    while True:
        try:
            return _post(port, token, body)
        except _Busy as busy:
            if time.monotonic() + busy.retry_after > end:
                raise ApiError(f"{busy}; given up after {budget:.0f} s", 503) from busy
            wait(busy.retry_after)


def _post(port: int, token: str, body: Json) -> Json:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/repo/checkout",
        data=json.dumps(body).encode(),
        headers={protocol.HEADER_AUTHORIZATION: f"Bearer {token}", "Content-Type": "application/json"},
    )
    # Never through a proxy: the token is for this machine's daemon alone.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=CHECKOUT_TIMEOUT) as answer:
            value = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read(protocol.ERROR_BODY_LIMIT).decode("utf-8", "replace")
        said = server_message(text) or text.strip() or f"the daemon answered {error.code}"
        if error.headers.get(protocol.HEADER_RETRYABLE) == protocol.RETRYABLE_REPO_BUSY:
            raise _Busy(said, _seconds(error.headers.get("Retry-After"))) from error
        raise ApiError(said, error.code) from error
    except OSError as error:
        raise TransportError(f"the daemon on this machine does not answer on port {port}: {error}") from error
    except ValueError as error:
        raise DecodeError("the daemon's answer is not JSON") from error
    return value if isinstance(value, dict) else {}


def _seconds(text: str | None) -> float:
    return min(float(text), 30.0) if text and text.isdigit() else DEFAULT_RETRY_AFTER
