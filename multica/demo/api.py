"""The demo's own calls of the issue API: JSON over HTTP with a bearer token, bounded in time."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

LIMIT = 20.0


class ApiFailed(Exception):
    """The server refused or did not answer; the text says what was asked and what came back."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Api:
    """One person's view of the server."""

    base: str
    token: str

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer; raises ApiFailed."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.base}/api/{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(2000).decode("utf-8", "replace")
            raise ApiFailed(f"{method} {path}: {error.code} {text}", error.code) from None
        except (OSError, ValueError) as error:
            raise ApiFailed(f"{method} {path}: {error}") from None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, body: Any) -> Any:
        return self.call("POST", path, body)

    def put(self, path: str, body: Any) -> Any:
        return self.call("PUT", path, body)
