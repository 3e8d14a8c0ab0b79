"""A daemon asks for work: the empty verdicts, the claim, the answers, and one decision for each runtime.

An idle poll with warm verdicts asks the database nothing. Otherwise a claim is one round trip on the claim door's own
connections, for any number of runtimes. What was committed is answered or put back, whatever happens to a neighbour.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.errors import UniqueViolation
from psycopg_pool import PoolTimeout

from queue_app import auth, decisions, empty_claims, events, transitions
from queue_app.auth import Caller
from queue_app.conf import conf
from queue_app.decisions import Outcome
from queue_app.empty_claims import Known, Verdict
from queue_app.errors import InvalidError, NotFoundError, RuntimeNotFoundError, UnavailableError
from queue_app.models import AgentRuntime, AgentTask
from queue_app.services import claim_answer, claim_undo, fail, promote, squads
from queue_app.services.claim_answer import Answer, AnswerError, Rejected, Shared
from queue_app.sql import door as claim_door
from queue_app.sql.claim import CALL

log = logging.getLogger(__name__)

BUDGET: Final = 4.5
"""Seconds a claim may take when the caller names no limit: less than the 5 s after which a daemon gives up."""
WORST_ERRORS: Final = (psycopg.Error, PoolTimeout)


@dataclass
class _Request:
    """One claim: who asks, for what, until when."""

    caller: Caller
    daemon_id: str | None
    room: int
    deadline: float
    door: str
    now: datetime | None
    workspaces: frozenset[UUID]
    secrets: dict[str, str] = field(default_factory=dict)

    def left(self) -> float:
        return self.deadline - time.monotonic()


@dataclass
class _Look:
    """What the database said: delivered rows, the outcome of each runtime, rows that the answers share.

    `recorded` names the runtimes whose outcome is kept already.
    """

    tasks: list[dict[str, Any]]
    runtimes: dict[str, dict[str, Any]]
    shared: dict[str, Any]
    recorded: set[str] = field(default_factory=set)


def claim(
    caller: Caller,
    *,
    daemon_id: str,
    runtime_ids: Sequence[str],
    max_tasks: int,
    timeout_ms: int | None = None,
    door: str = "http",
    now: datetime | None = None,
) -> list[dict[str, Any]]:
    """Claim up to `max_tasks` (32 at most, 0 claims nothing) for the named runtimes of one daemon.

    Returns wire dicts of protocol section 3. Unknown, foreign and malformed runtime ids are left out silently. Raises
    InvalidError for a missing `daemon_id` or a negative `max_tasks`, and UnavailableError when nothing was kept: the
    database did not answer in time, or the answer would have come later than `timeout_ms` and was undone.
    """
    if not daemon_id:
        raise InvalidError("daemon_id is required", field="daemon_id")
    if max_tasks < 0:
        raise InvalidError("max_tasks must not be negative", field="max_tasks")
    ids = _well_formed(runtime_ids)
    if not ids or max_tasks == 0:
        return []
    return _claim(_request(caller, daemon_id, max_tasks, timeout_ms, door, now), ids)


def claim_for_runtime(
    caller: Caller, runtime_id: str, *, door: str = "http", now: datetime | None = None
) -> dict[str, Any] | None:
    """Claim one task for one runtime, as daemons without the batch route do; None when there is none.

    Raises RuntimeNotFoundError when no such runtime exists and NotFoundError when the caller may not see it.
    """
    ids = _well_formed([runtime_id])
    if not ids:
        raise RuntimeNotFoundError
    request = _request(caller, None, 1, None, door, now)
    tasks = _claim(request, ids)
    if not tasks and request.secrets:
        _require_visible(request, ids[0])
    return tasks[0] if tasks else None


def _require_visible(request: _Request, runtime_id: str) -> None:
    workspace = AgentRuntime.objects.filter(id=runtime_id).values_list("workspace_id", flat=True).first()
    if workspace is None:
        raise RuntimeNotFoundError
    if workspace not in request.workspaces:
        raise NotFoundError("not found")


def _request(
    caller: Caller, daemon_id: str | None, room: int, timeout_ms: int | None, door: str, now: datetime | None
) -> _Request:
    budget = BUDGET if timeout_ms is None else timeout_ms / 1000
    room = min(room, conf.CLAIM_BATCH_CAP)
    return _Request(caller, daemon_id, room, time.monotonic() + budget, door, now, auth.workspace_ids(caller))


def _well_formed(runtime_ids: Iterable[str]) -> list[str]:
    ids: dict[str, None] = {}
    for text in runtime_ids:
        try:
            ids[str(UUID(str(text)))] = None
        except ValueError:
            continue
    return list(ids)


def _claim(request: _Request, ids: Sequence[str]) -> list[dict[str, Any]]:
    # The versions are read before the look: an enqueue in between makes the verdict stored afterwards stale.
    known = empty_claims.read(ids)
    cold = [runtime_id for runtime_id in ids if not _answers(known[runtime_id].verdict, request)]
    for runtime_id in ids:
        verdict = known[runtime_id].verdict
        if verdict is not None and runtime_id not in cold:
            decisions.note(runtime_id, Outcome.EMPTY_CACHE_HIT, request.door, verdict.workspace_id)
    if not cold:
        return []
    look = _look(request, cold, request.room)
    with _whatever_happens("keeping the empty verdicts"):
        _keep_verdicts(look, known)
    _queue_what_is_due(request, look)
    with _whatever_happens("keeping the outcomes"):
        for runtime_id in look.runtimes.keys() - look.recorded:
            facts = look.runtimes[runtime_id]
            decisions.note(runtime_id, facts["outcome"], request.door, facts.get("workspace_id"))
    return _hand_over(request, look)


@contextmanager
def _whatever_happens(what: str) -> Iterator[None]:
    """Run what is only told or counted about a claim: its failure is logged, and no delivery is lost by it."""
    try:
        yield
    except Exception:
        log.exception("%s failed after a claim; what was claimed is handed over", what)


def _answers(verdict: Verdict | None, request: _Request) -> bool:
    """Whether a verdict is about this caller: one of another daemon's or workspace's runtime says nothing to it."""
    if verdict is None:
        return False
    if request.daemon_id is not None and verdict.daemon_id not in ("", request.daemon_id):
        return False
    return UUID(verdict.workspace_id) in request.workspaces


# ------------------------------------------------------------------------------------------------------- the look


def _look(request: _Request, ids: Sequence[str], room: int) -> _Look:
    """One claim in the database. Nothing was taken when it raises."""
    try:
        return _ask(request, ids, room, one_by_one=False)
    except UniqueViolation:
        # The index of active keys refused the batch: somebody wrote outside the guard. Every other row still stands.
        log.warning("a batch met a taken serial key; its rows are claimed one by one")
    except WORST_ERRORS as error:
        raise _refused(request, ids, error) from error
    try:
        return _ask(request, ids, room, one_by_one=True)
    except WORST_ERRORS as error:
        raise _refused(request, ids, error) from error


def _refused(request: _Request, ids: Sequence[str], error: Exception) -> UnavailableError:
    for runtime_id in ids:
        decisions.error(runtime_id, Outcome.ERROR_CLAIM, request.door, text=type(error).__name__)
    return UnavailableError("the claim could not be made now, nothing was taken")


def _ask(request: _Request, ids: Sequence[str], room: int, *, one_by_one: bool) -> _Look:
    minted = [auth.mint(auth.TASK) for _ in range(room)]
    request.secrets.update((token_hash, secret) for secret, token_hash in minted)
    values = {
        "runtimes": list(ids),
        "daemon": request.daemon_id,
        "workspaces": list(request.workspaces),
        "max": room,
        "hashes": [token_hash for _, token_hash in minted],
        "freshness": conf.RUNTIME_FRESHNESS,
        "recovery": conf.CLAIM_RECOVERY_WINDOW,
        "lease": conf.PREPARE_LEASE,
        "token_ttl": conf.TASK_TOKEN_TTL,
        "max_deliveries": conf.MAX_DELIVERIES,
        "one_by_one": one_by_one,
        "now": request.now,
    }
    left = request.left()
    if left <= 0:
        raise PoolTimeout("no time left for the claim")
    with claim_door.connection(timeout=left) as connection:
        row = connection.execute(CALL, values).fetchone()
    assert row is not None
    found = row[0]
    runtimes = {
        key: value if isinstance(value, dict) else {"outcome": value} for key, value in found["runtimes"].items()
    }
    return _Look(found["tasks"], runtimes, found.get("shared") or {})


def _keep_verdicts(look: _Look, known: Mapping[str, Known]) -> None:
    """Keep what was found empty, until it may no longer be true by itself: a time to fire, a redelivery."""
    found = {}
    for runtime_id, facts in look.runtimes.items():
        if not facts.get("empty") or facts["due_now"]:
            continue
        lives = conf.EMPTY_CLAIM_TTL if facts["due_in"] is None else min(conf.EMPTY_CLAIM_TTL, facts["due_in"])
        verdict = Verdict(facts["workspace_id"], facts["daemon_id"])
        found[runtime_id] = (known[runtime_id].version, verdict, float(lives))
    if found:
        empty_claims.store(found)


def _queue_what_is_due(request: _Request, look: _Look) -> None:
    """Queue deferred rows that came due on these runtimes, and claim them in the same request."""
    due = [runtime_id for runtime_id, facts in look.runtimes.items() if facts.get("due_now")]
    room = request.room - len(look.tasks)
    if not due or room <= 0:
        return
    try:
        promoted = promote.run([UUID(runtime_id) for runtime_id in due], now=request.now, actor="server")
        again = _ask(request, due, room, one_by_one=False) if promoted else None
    except Exception as error:
        # What was claimed before stands; the sweep or the next poll promotes.
        log.warning("deferred work could not be queued: %s", type(error).__name__)
        for runtime_id in due:
            decisions.error(runtime_id, Outcome.ERROR_PROMOTE, request.door, text=type(error).__name__)
        look.recorded.update(due)
        return
    if again is not None:
        _merge(look, again)


def _merge(look: _Look, again: _Look) -> None:
    look.tasks.extend(again.tasks)
    for runtime_id, facts in again.runtimes.items():
        if facts["outcome"] in decisions.DELIVERED or look.runtimes[runtime_id]["outcome"] not in decisions.DELIVERED:
            look.runtimes[runtime_id] = facts
    for kind, rows in again.shared.items():
        look.shared[kind] = {**(look.shared.get(kind) or {}), **(rows or {})}


# ------------------------------------------------------------------------------------------------- the hand-over


def _hand_over(request: _Request, look: _Look) -> list[dict[str, Any]]:
    """Build the answer of each delivered task; one that cannot be built is put back or ended, the others go out."""
    if not look.tasks:
        return []
    with _whatever_happens("telling of the deliveries"):
        _tell(look)
    if request.left() <= 0:
        raise _undone(request, look.tasks)
    shared, trouble = _shared(look)
    answers = [(task, _answer(request, task, shared, trouble)) for task in look.tasks]
    if request.left() <= 0:
        raise _undone(request, [task for task, answer in answers if answer is not None])
    return [answer.wire for _, answer in answers if answer is not None]


def _tell(look: _Look) -> None:
    events.announce("claim", [_as_row(task) for task in look.tasks if task["verb"] == "claim"], wakes=False)
    again = [task["runtime_id"] for task in look.tasks if task["verb"] != "claim"]
    if again:
        empty_claims.bump(again)


def _as_row(task: Mapping[str, Any]) -> AgentTask:
    """Just enough of a row to announce it."""
    names = ("id", "agent_id", "issue_id", "status", "event_seq", "chat_session_id", "workspace_id", "runtime_id")
    return AgentTask(**{name: task[name] for name in names})


def _shared(look: _Look) -> tuple[Shared, Exception | None]:
    rows = {kind: found or {} for kind, found in look.shared.items()}
    try:
        led = squads.briefings(task["squad_id"] for task in look.tasks if task["is_leader_task"] and task["squad_id"])
        remarks = claim_answer.read_remarks(look.tasks)
        return Shared(**rows, runtimes=look.runtimes, remarks=remarks, squads=led), None
    except Exception as error:
        # Only tasks that need comments or a briefing are hit by it.
        log.warning("comments or squads of claimed tasks could not be read: %s", type(error).__name__)
        return Shared(**rows, runtimes=look.runtimes), error


def _answer(request: _Request, task: dict[str, Any], shared: Shared, trouble: Exception | None) -> Answer | None:
    """The answer of one task, or None after it was put back or ended. Never raises."""
    try:
        if trouble is not None and (claim_answer.comment_ids(task) or task["is_leader_task"]):
            raise AnswerError(f"its comments or its squad could not be read: {type(trouble).__name__}")
        answer = claim_answer.build(task, shared, request.secrets[task["token_hash"]])
        return answer if _noted(task, answer) else None
    except Rejected as rejected:
        _settle(request, task, rejected.outcome, str(rejected), rejected.reason)
    except Exception as error:
        text = str(error) if isinstance(error, AnswerError) else type(error).__name__
        _settle(request, task, Outcome.ERROR_ANSWER, text)
    return None


def _noted(task: Mapping[str, Any], answer: Answer) -> bool:
    """Write down which comments this delivery carries; False if the row has moved on meanwhile."""
    if sorted(answer.embedded) == sorted(task["delivered_comment_ids"]):
        return True
    ids = [UUID(comment_id) for comment_id in answer.embedded]
    row = transitions.record_delivery(UUID(task["id"]), claim_token=UUID(task["claim_token"]), comment_ids=ids)
    return row is not None


def _settle(request: _Request, task: Mapping[str, Any], outcome: Outcome, text: str, reason: str | None = None) -> None:
    """Put a delivery back, or end a task that can never be answered, and keep the decision.

    When even that fails, the row is delivered again once its window and its lease are over.
    """
    task_id, token = UUID(task["id"]), UUID(task["claim_token"])
    decisions.error(
        task["runtime_id"], outcome, request.door, workspace_id=task["workspace_id"], task_id=task["id"], text=text
    )
    try:
        if reason is not None:
            fail.end_unbuildable(task_id, claim_token=token, reason=reason, error=text)
        elif outcome is Outcome.ERROR_SOURCE:
            claim_undo.withdraw(task_id, token, reason=text)
        else:
            claim_undo.put_back(task_id, token, deliveries=task["deliveries"], reason=text)
    except Exception:
        log.exception("task %s could not be taken back, its lease will end", task_id)


def _undone(request: _Request, tasks: Iterable[Mapping[str, Any]]) -> UnavailableError:
    """The caller has stopped waiting: nothing of what was committed may stay out."""
    for task in tasks:
        _settle(request, task, Outcome.ERROR_LATE, "the claim was answered too late")
    return UnavailableError("the claim took too long and was undone")
