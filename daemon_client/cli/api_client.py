"""A small synchronous HTTP client for the command line: an agent calls it many times a task, so it imports little."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from daemon_client import __version__, protocol
from daemon_client.errors import ConfigError, DaemonError, DecodeError, HttpError, NotAuthenticated, TransportError

DEFAULT_TIMEOUT: Final = 30.0
MAX_BODY: Final = 64 * 1024 * 1024
_TASK_MARK: Final = Path(".multica") / "daemon_task_context.json"
_CONTENT_ERRORS: Final = (400, 409, 422)

Json = dict[str, Any]


class ApiError(DaemonError):
    """The server refused; the text is its own sentence, in words for whoever typed the command."""

    def __init__(self, text: str, status: int) -> None:
        self.status = status
        super().__init__(text)

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return {401: 3, 403: 3, 404: 4, 400: 5, 422: 5}.get(self.status, 1)


def in_task(environ: Mapping[str, str], cwd: Path | None = None) -> bool:
    """Whether this command acts for an agent: its environment says so, or it runs in a directory that the daemon
    manages.
    """
    if environ.get("MULTICA_TASK_CONFIG_ROOT") or environ.get("MULTICA_TASK_ID"):
        return True
    here = cwd or Path.cwd()
    return any((folder / _TASK_MARK).is_file() for folder in (here, *here.parents))


@dataclass(frozen=True)
class Target:
    """Which server to call, and as whom."""

    base_url: str
    token: str = field(repr=False)
    workspace_id: str = ""
    timeout: float = DEFAULT_TIMEOUT
    headers: Mapping[str, str] = field(default_factory=dict)


def target_from(environ: Mapping[str, str], profile: str = "") -> Target:
    """Server, token and workspace of this command. Raises NotAuthenticated or ConfigError, saying what to do.

    Inside a task only the task's own token counts: there is no way back to the login of the machine's owner.
    """
    from daemon_client import config

    inside = in_task(environ)
    token = environ.get("MULTICA_TOKEN", "").strip()
    if inside and not token.startswith(protocol.PREFIX_TASK_TOKEN):
        raise NotAuthenticated(
            "inside a task only the task's own token (MULTICA_TOKEN, mat_…) may be used, and it is not there"
        )
    file = config.ConfigFile.load(environ, "" if inside else profile)
    token = token or ("" if inside else file.text("token"))
    if not token:
        raise NotAuthenticated("you are not logged in; run: multica login --server-url URL --token mul_…")
    identity = {"X-Agent-ID": environ.get("MULTICA_AGENT_ID", ""), "X-Task-ID": environ.get("MULTICA_TASK_ID", "")}
    return Target(
        base_url=config.server_url(file, environ),
        token=token,
        workspace_id=environ.get("MULTICA_WORKSPACE_ID") or file.text("workspace_id"),
        timeout=_timeout(environ),
        headers={name: value for name, value in identity.items() if value},
    )


def _timeout(environ: Mapping[str, str]) -> float:
    from daemon_client.config import parse_duration

    text = environ.get("MULTICA_HTTP_TIMEOUT", "")
    return parse_duration(text) if text and text != "0" else DEFAULT_TIMEOUT


class Client:
    """One server, one identity. Every call has a time limit and is tried once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        # A redirect would turn a POST into a GET without its body: it is an answer like any other, and no success.
        self._opener = urllib.request.build_opener(_NoRedirect)

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        return self.call("GET", path, query=query)

    def post(self, path: str, body: object) -> Any:
        return self.call("POST", path, body=body)

    def put(self, path: str, body: object) -> Any:
        return self.call("PUT", path, body=body)

    def call(self, method: str, path: str, *, body: object = None, query: Mapping[str, object] | None = None) -> Any:
        """The decoded answer (None for an empty one). Raises ApiError, TransportError or DecodeError."""
        given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        url = self.target.base_url + path + (f"?{urllib.parse.urlencode(given)}" if given else "")
        data = None if method == "GET" else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method, headers=self._headers())
        text = self._send(request, path)
        if not text.strip():
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise DecodeError(
                f"{method} {path} answered with something that is not JSON; is {url} a Multica server?"
            ) from error

    def _headers(self) -> dict[str, str]:
        return {
            protocol.HEADER_AUTHORIZATION: f"Bearer {self.target.token}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            protocol.HEADER_CLIENT_PLATFORM: protocol.PLATFORM_CLI,
            protocol.HEADER_CLIENT_VERSION: __version__,
            protocol.HEADER_CLIENT_OS: {"darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform),
            protocol.HEADER_CLIENT_CAPABILITIES: "stable_attachment_urls",
            **({protocol.HEADER_WORKSPACE_ID: self.target.workspace_id} if self.target.workspace_id else {}),
            **self.target.headers,
        }

    def _send(self, request: urllib.request.Request, path: str) -> str:
        try:
            with self._opener.open(request, timeout=self.target.timeout) as answer:
                return cast("bytes", answer.read(MAX_BODY)).decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            body = error.read(protocol.ERROR_BODY_LIMIT).decode("utf-8", "replace").strip()
            raise ApiError(_sentence(error.code, body, request.get_method(), path), error.code) from error
        except (urllib.error.URLError, TimeoutError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise TransportError(f"{self.target.base_url} cannot be reached: {reason}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _sentence(status: int, body: str, method: str, path: str) -> str:
    said = server_message(body)
    if status == 401:
        return f"the server does not accept the token ({said or 'unauthorised'}); inside a task it ends with the task"
    if status == 403:
        return f"not allowed: {said or path}"
    if status == 404:
        return f"not found: {said or path}"
    if status in _CONTENT_ERRORS and said:
        return said
    return f"{method} {path} returned {status}: {said or body[:300]}"


def server_message(body: str) -> str:
    """The sentence in an error body: the first usable text among the usual fields, and the fields that it names."""
    try:
        value = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(value, dict):
        return ""
    texts = (value.get(key) for key in ("error", "message", "detail", "title"))
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")


def client(args: Any) -> Client:
    """The client for a command line with the usual options."""
    return Client(target_from(os.environ, getattr(args, "profile", "")))


def text_or_file(text: str | None, file: str | None, name: str) -> str | None:
    """A long value from an option or from a file (`-`: standard input). Raises ConfigError when both or a bad file is
    given.
    """
    if file is None:
        return text
    if text is not None:
        raise ConfigError(f"give either --{name} or --{name}-file, not both")
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--{name}-file {file}: {error}") from error


__all__ = [
    "ApiError",
    "Client",
    "HttpError",
    "Target",
    "client",
    "in_task",
    "server_message",
    "target_from",
    "text_or_file",
]
