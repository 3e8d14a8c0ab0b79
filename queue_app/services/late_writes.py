"""The ledger of refused calls: a delivery that no longer owns its task, or comes after the end, leaves an entry here.

Nothing else is written for such a call. An entry must outlive the refusal, so it is made outside any transaction that
the refusal rolls back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from queue_app.auth import Caller
from queue_app.domain.states import TERMINAL, WAITING
from queue_app.errors import (
    ConflictError,
    QueueError,
    StaleClaimError,
    StartClaimRejectedError,
    TaskEndedError,
    TaskNotFoundError,
)
from queue_app.models import AgentTask, LateWrite

PAYLOAD_LIMIT = 64 * 1024
"""Characters of JSON kept of what a refused call carried."""


def record(
    task: AgentTask,
    verb: str,
    code: str,
    caller: Caller,
    claim_token: UUID | None,
    payload: Mapping[str, Any] | None = None,
) -> LateWrite:
    """Keep one refused call: what it wanted, under which token, and what the row was then. Never touches the row.

    `payload` is what the call carried, JSON with plain texts. One that is too large is kept as a cut text.
    """
    return LateWrite.objects.create(
        task_id=task.pk,
        verb=verb,
        code=code,
        claim_token=claim_token,
        current_token=task.claim_token,
        status=task.status,
        payload=_bounded(payload or {}),
        actor=caller.actor,
    )


def _bounded(payload: Mapping[str, Any]) -> dict[str, Any]:
    # msgspec writes what JSON has no word for (infinity) as null, which jsonb can store.
    text = msgspec.json.encode(payload).decode()
    if len(text) <= PAYLOAD_LIMIT:
        return dict(msgspec.json.decode(text))
    return {"cut": text[:PAYLOAD_LIMIT], "characters": len(text)}


def is_stale(task: AgentTask, claim_token: UUID | None) -> bool:
    """Whether a call does not belong to the row's delivery: another token, or a row that no delivery owns."""
    if claim_token is not None and claim_token != task.claim_token:
        return True
    return task.status in WAITING


def require_own(
    task: AgentTask, verb: str, caller: Caller, claim_token: UUID | None, payload: Mapping[str, Any] | None = None
) -> None:
    """Refuse and record a call whose delivery does not own the row as it was read."""
    if is_stale(task, claim_token):
        raise _refused(StaleClaimError, task, verb, caller, claim_token, payload)


def refuse(
    task_id: UUID, verb: str, caller: Caller, claim_token: UUID | None, payload: Mapping[str, Any] | None = None
) -> NoReturn:
    """Raise the `refusal`."""
    raise refusal(task_id, verb, caller, claim_token, payload)


def refusal(
    task_id: UUID, verb: str, caller: Caller, claim_token: UUID | None, payload: Mapping[str, Any] | None = None
) -> QueueError:
    """Why a transition that this call asked for did not happen, from the row as it is now; recorded.

    StaleClaimError (for `start`: StartClaimRejectedError), TaskEndedError, TaskNotFoundError, or ConflictError when
    the delivery owns the row and only the state does not allow the verb. The last is not recorded.
    """
    task = AgentTask.objects.filter(pk=task_id).first()
    if task is None:
        return TaskNotFoundError()
    if is_stale(task, claim_token):
        kind = StartClaimRejectedError if verb == "start" else StaleClaimError
        return _refused(kind, task, verb, caller, claim_token, payload)
    if task.status in TERMINAL:
        return _refused(TaskEndedError, task, verb, caller, claim_token, payload)
    return ConflictError(f"a task that is {task.status} cannot {verb}")


_TEXTS: dict[type[QueueError], str] = {
    StaleClaimError: "{code}: another delivery of this task is the one at work, this one is over",
    StartClaimRejectedError: "{code}: another delivery of this task may start, this one may not",
    TaskEndedError: "{code}: the task is {status}",
}


def _refused(
    kind: type[ConflictError],
    task: AgentTask,
    verb: str,
    caller: Caller,
    claim_token: UUID | None,
    payload: Mapping[str, Any] | None,
) -> ConflictError:
    record(task, verb, kind.code, caller, claim_token, payload)
    return kind(text_of(kind, task))


def text_of(kind: type[ConflictError], task: AgentTask) -> str:
    """The words of a refusal. They begin with the code: daemons that know no codes repeat them in their `fail`."""
    return _TEXTS[kind].format(code=kind.code, status=task.status)


def rejected_start(task: AgentTask, caller: Caller) -> StartClaimRejectedError:
    """The recorded refusal of a start without a token on a row that runs and was delivered more than once.

    Its daemon repeats the words of this refusal in the `fail` that follows, which is how that one is known as stale.
    """
    error = _refused(StartClaimRejectedError, task, "start", caller, None, None)
    assert isinstance(error, StartClaimRejectedError)
    return error
