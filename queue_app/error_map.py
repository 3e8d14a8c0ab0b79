"""From a refusal to its answer: the one table of HTTP statuses, which the socket's RPC uses too."""

from __future__ import annotations

from typing import Any

from queue_app import errors

# The most special class first: the first match wins.
STATUS_OF: tuple[tuple[type[errors.QueueError], int], ...] = (
    (errors.NotFoundError, 404),
    (errors.AuthError, 401),
    (errors.ForbiddenError, 403),
    (errors.InvalidError, 400),
    (errors.ConflictError, 409),
    (errors.UnavailableError, 503),
)


def answer_to(error: errors.QueueError) -> tuple[int, dict[str, Any]]:
    """HTTP status and body `{"error", "code"}` of a refusal, with `field` when the error names one.

    The texts of missing tasks and runtimes are part of the protocol, so they pass unchanged. Anything that is not in
    the table is a fault of ours and answers 500: a daemon repeats its report then instead of throwing work away.
    """
    status = next((status for kind, status in STATUS_OF if isinstance(error, kind)), 500)
    body: dict[str, Any] = {"error": str(error), "code": error.code}
    field = getattr(error, "field", None)
    if field:
        body["field"] = field
    return status, body
