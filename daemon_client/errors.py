"""Errors of the daemon. The transport ones say what the caller may conclude, not only what went wrong."""

from __future__ import annotations

from daemon_client import protocol


class DaemonError(Exception):
    """Base of every error this package raises on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1


class ConfigError(DaemonError):
    """A setting cannot be used; the text names it."""


class NotAuthenticated(DaemonError):
    """There is no token, or the server refuses it."""

    exit_code = 3


class AlreadyRunning(DaemonError):
    """Another daemon of this profile runs on the machine."""

    def __init__(self, pid: int | None, port: int) -> None:
        self.pid, self.port = pid, port
        who = f"with process id {pid}" if pid else f"on port {port}"
        super().__init__(f"a daemon is already running {who}; stop it with: multica daemon stop")


class TransportError(DaemonError):
    """A request did not produce an answer: network, TLS, timeout. Unless `unsent`, the server may have acted on it."""

    exit_code = 2
    transient = True

    def __init__(self, text: str, *, unsent: bool = False) -> None:
        self.unsent = unsent
        super().__init__(text)


class DecodeError(DaemonError):
    """The server answered, but not with what was asked for."""

    transient = False


class HttpError(DaemonError):
    """The server answered with a status of 400 or more. `body` is at most 4 KiB, trimmed; `code` its machine code."""

    def __init__(self, method: str, path: str, status: int, body: str, code: str = "") -> None:
        self.status, self.body, self.code = status, body, code
        super().__init__(f"{method} {path} returned {status}: {body[:500]}")

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return {401: 3, 403: 3, 404: 4, 400: 5, 422: 5}.get(self.status, 1)

    @property
    def transient(self) -> bool:
        """True when asking again later may help: 5xx, 408, 429."""
        return self.status >= 500 or self.status in (408, 429)

    def says(self, status: int, text: str) -> bool:
        return self.status == status and text in self.body.lower()

    @property
    def runtime_not_found(self) -> bool:
        return self.says(404, protocol.TEXT_RUNTIME_NOT_FOUND)

    @property
    def task_not_found(self) -> bool:
        return self.says(404, protocol.TEXT_TASK_NOT_FOUND)

    @property
    def claim_is_over(self) -> bool:
        """The server will accept nothing more from this delivery: it was superseded, or its task has ended."""
        return self.status == 409 and self.code in protocol.FINAL_CODES


class RpcUnavailable(DaemonError):
    """The call provably never reached the server; another transport may be tried at once."""


class RpcRejected(DaemonError):
    """The server answered the call with a status outside 200-299, or with a body that cannot be read."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(f"rpc status {status}: {text[:500]}")


class RpcUncertain(DaemonError):
    """The call may have reached the server and no answer came: trying again now could do it twice."""


def is_transient(error: BaseException) -> bool:
    """True when the same call may succeed later. Unknown errors are not transient."""
    return bool(getattr(error, "transient", False))
