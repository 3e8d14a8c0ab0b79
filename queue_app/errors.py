"""Refusals that services raise and doors translate. Each carries the code that goes on the wire."""

from __future__ import annotations


class QueueError(Exception):
    """A request that cannot be done. `code` is stable; the text is for people and names the field or object."""

    code = "error"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message or self.code)
        if code is not None:
            self.code = code


class NotFoundError(QueueError):
    """No such row, or one the caller may not know about."""

    code = "not_found"


class TaskNotFoundError(NotFoundError):
    """The task row does not exist. Daemons stop their run on exactly this text."""

    code = "task_not_found"

    def __init__(self, message: str = "task not found") -> None:
        super().__init__(message)


class RuntimeNotFoundError(NotFoundError):
    """The runtime row does not exist. Daemons register again on exactly this text."""

    code = "runtime_not_found"

    def __init__(self, message: str = "runtime not found") -> None:
        super().__init__(message)


class AuthError(QueueError):
    """The call names no caller that is known. The text is part of the protocol and says nothing about the token."""

    code = "unauthenticated"


class UnavailableError(QueueError):
    """The server could not do it in time or at all just now; nothing was changed and the call may be repeated."""

    code = "unavailable"


class ForbiddenError(QueueError):
    """The caller is known and may not do this."""

    code = "forbidden"


class InvalidError(QueueError):
    """The request itself is wrong. `field` names what to change."""

    code = "invalid"

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.field = field


class ConflictError(QueueError):
    """The row is not in a state that allows this."""

    code = "conflict"


class StaleClaimError(ConflictError):
    """The call's token is not the row's: another delivery owns the task. Final for the caller, nothing was changed."""

    code = "stale_claim"


class StartClaimRejectedError(StaleClaimError):
    """A `start` from a delivery that no longer owns the task."""

    code = "start_claim_rejected"


class TaskEndedError(ConflictError):
    """The task has ended; nothing may be launched, parked or renewed for it."""

    code = "task_ended"
