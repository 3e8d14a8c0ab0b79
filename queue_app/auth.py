"""Who is calling: bearer tokens of people and daemons (`mul_`) and of running tasks (`mat_`).

A person's token that was found is kept in the process, so that an idle poll asks the database nothing. What is kept
counts only while the *epoch* in Redis is the one it was read under; every revocation, every change of a membership and
every disabled user draws a new epoch, so it acts at once on every replica. Without Redis what is kept is good for 15 s.
Task tokens are never kept: they end with their delivery.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.db.models.signals import post_delete, post_save
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from queue_app import redis
from queue_app.domain.states import ACTIVE
from queue_app.errors import AuthError, ForbiddenError
from queue_app.models import AgentTask, Member, PersonalAccessToken, TaskToken, User

log = logging.getLogger(__name__)

EPOCH_KEY = "mul:auth:epoch"
PERSONAL = "mul_"
TASK = "mat_"
KEPT_UNDER_EPOCH = 180.0
KEPT_ALONE = 15.0
KEPT_MOST = 20_000
NOTE_USE_EVERY = 600.0
"""Seconds: how long a found token is kept with and without Redis, how often its last use is written; tokens kept."""

__all__ = [
    "AuthError",
    "BearerAuthentication",
    "Caller",
    "SessionOfPerson",
    "authenticate",
    "for_user",
    "hash_of",
    "mint",
    "workspace_ids",
]


@dataclass(frozen=True)
class Caller:
    """Who calls and how far the call may reach.

    `actor` is what events and ledgers record. `workspace_id` None means every workspace that the user is a member of.
    """

    kind: str
    user: User
    actor: str
    task: AgentTask | None = None
    agent_id: UUID | None = None
    workspace_id: UUID | None = None
    token_id: UUID | None = None
    known_workspaces: frozenset[UUID] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class _Kept:
    caller: Caller
    epoch: str | None
    since: float
    ends: float


class _Keep:
    """Found tokens by hash, the longest unused dropped first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[str, _Kept] = OrderedDict()

    def get(self, token_hash: str) -> _Kept | None:
        with self._lock:
            kept = self._found.get(token_hash)
            if kept is not None:
                self._found.move_to_end(token_hash)
            return kept

    def put(self, token_hash: str, kept: _Kept) -> None:
        with self._lock:
            self._found[token_hash] = kept
            while len(self._found) > KEPT_MOST:
                self._found.popitem(last=False)

    def drop(self, token_hash: str) -> None:
        with self._lock:
            self._found.pop(token_hash, None)

    def clear(self) -> None:
        with self._lock:
            self._found.clear()


_keep = _Keep()


def mint(prefix: str) -> tuple[str, str]:
    """A new secret (`prefix` + 40 hex digits, 160 random bits) and the hash under which it is stored."""
    secret = prefix + secrets.token_hex(20)
    return secret, hash_of(secret)


def hash_of(secret: str) -> str:
    """SHA-256 in hex. The secrets are random, so no salt and no slow hash is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def authenticate(header: str | None) -> Caller:
    """The caller of an `Authorization` header.

    Raises AuthError (401, the texts of the protocol) for a missing, malformed, unknown, expired or revoked token and
    ForbiddenError for a disabled user. A task token counts only while its own delivery is the one at work.
    """
    if not header:
        raise AuthError("missing authorization header")
    scheme, _, secret = header.partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise AuthError("invalid authorization format")
    if secret.startswith(PERSONAL):
        return _personal(hash_of(secret))
    if secret.startswith(TASK):
        return _of_task(hash_of(secret))
    raise AuthError("invalid token")


def for_user(user: User) -> Caller:
    """The caller that a person is who came in by other means than a token, such as a session."""
    return Caller("user", user, f"user:{user.pk}")


def workspace_ids(caller: Caller) -> frozenset[UUID]:
    """The workspaces that this caller may touch. No statement for a caller that `authenticate` gave."""
    if caller.known_workspaces is not None:
        return caller.known_workspaces
    return _memberships(caller.user.pk, caller.workspace_id)


def _memberships(user_id: UUID, only: UUID | None) -> frozenset[UUID]:
    rows = Member.objects.filter(user_id=user_id)
    if only is not None:
        rows = rows.filter(workspace_id=only)
    return frozenset(rows.values_list("workspace_id", flat=True))


def _personal(token_hash: str) -> Caller:
    # The epoch is read before the rows: a revocation in between makes what is kept here stale, never fresh.
    epoch = _epoch()
    kept = _keep.get(token_hash)
    now = time.monotonic()
    if kept is not None and now < kept.ends and _still_good(kept, epoch, now):
        return kept.caller
    _keep.drop(token_hash)
    caller, lives = _read_personal(token_hash)
    _keep.put(token_hash, _Kept(caller, epoch, now, now + lives))
    return caller


def _still_good(kept: _Kept, epoch: str | None, now: float) -> bool:
    age = now - kept.since
    if epoch is None or kept.epoch is None:
        return age < KEPT_ALONE
    return epoch == kept.epoch and age < KEPT_UNDER_EPOCH


def _read_personal(token_hash: str) -> tuple[Caller, float]:
    """The caller of a live personal token and for how many seconds the token will still be one."""
    row = (
        PersonalAccessToken.objects.filter(token_hash=token_hash, revoked_at__isnull=True)
        .filter(Q(expires_at__isnull=True) | Q(expires_at__gt=Now()))
        .select_related("user")
        .annotate(asked_at=Now())
        .first()
    )
    if row is None:
        raise AuthError("invalid token")
    _require_enabled(row.user)
    _note_use(row.pk, row.last_used_at, row.asked_at)
    lives = KEPT_UNDER_EPOCH if row.expires_at is None else (row.expires_at - row.asked_at).total_seconds()
    reach = _memberships(row.user_id, row.workspace_id)
    caller = Caller(
        "user",
        row.user,
        f"user:{row.user_id}",
        workspace_id=row.workspace_id,
        token_id=row.pk,
        known_workspaces=reach,
    )
    return caller, lives


def _note_use(token_id: UUID, last: datetime | None, now: datetime) -> None:
    if last is None or (now - last).total_seconds() >= NOTE_USE_EVERY:
        PersonalAccessToken.objects.filter(pk=token_id).update(last_used_at=Now())


def _of_task(token_hash: str) -> Caller:
    row = (
        TaskToken.objects.filter(
            token_hash=token_hash,
            revoked_at__isnull=True,
            expires_at__gt=Now(),
            task__status__in=sorted(ACTIVE),
            task__claim_token=F("claim_token"),
        )
        .select_related("user", "task")
        .first()
    )
    if row is None:
        raise AuthError("invalid token")
    _require_enabled(row.user)
    return Caller(
        "task",
        row.user,
        f"task:{row.task.pk}",
        task=row.task,
        agent_id=row.agent_id,
        workspace_id=row.workspace_id,
        known_workspaces=frozenset({row.workspace_id}),
    )


def _require_enabled(user: User) -> None:
    if not user.is_active:
        raise ForbiddenError("this user is disabled")


# ------------------------------------------------------------------------------------------------------ revocation


def _epoch() -> str | None:
    """The epoch under which found tokens count, the same on every replica; None when Redis cannot say."""
    found = redis.call(lambda client: client.get(EPOCH_KEY))
    if found is None and redis.configured():
        # A lost epoch (a flushed Redis) must not bring back what an earlier one had ended, hence random and new.
        fresh = secrets.token_hex(8)
        redis.call(lambda client: client.set(EPOCH_KEY, fresh, nx=True))
        found = redis.call(lambda client: client.get(EPOCH_KEY))
    return None if found is None else str(found)


def _draw_epoch() -> None:
    fresh = secrets.token_hex(8)
    if redis.call(lambda client: client.set(EPOCH_KEY, fresh)) is None and redis.configured():
        log.warning("a revocation reaches replicas that still have Redis only within %d s", KEPT_UNDER_EPOCH)


def forget_found() -> None:
    """Make every replica look again at every token it knows: at once here and where Redis is, else within 15 s."""
    _keep.clear()
    _draw_epoch()


def _changed(sender: type, created: bool = False, update_fields: Iterable[str] | None = None, **_: Any) -> None:
    # A new user or token is in nobody's memory, and a login writes the user every time.
    if (created and sender is not Member) or set(update_fields or ()) == {"last_login"}:
        return
    # Twice on purpose: this process at once, so that its own transaction sees it, and everybody after the commit,
    # because a replica that looked again before it would keep the old answer under the new epoch.
    _keep.clear()
    transaction.on_commit(forget_found)


for _model in (PersonalAccessToken, Member, User):
    post_save.connect(_changed, sender=_model, dispatch_uid=f"auth-saved-{_model.__name__}")
    post_delete.connect(_changed, sender=_model, dispatch_uid=f"auth-deleted-{_model.__name__}")


# ------------------------------------------------------------------------------------------- for the doors of DRF


class BearerAuthentication(BaseAuthentication):
    """Bearer tokens for DRF views; sets `request.caller`. Without a header the next class is asked."""

    def authenticate(self, request: Request) -> tuple[User, Any] | None:
        """The user and the caller, or None when there is no header at all."""
        header = request.META.get("HTTP_AUTHORIZATION")
        if not header:
            return None
        try:
            caller = authenticate(header)
        except AuthError as error:
            raise AuthenticationFailed(str(error)) from None
        except ForbiddenError as error:
            raise PermissionDenied(str(error)) from None
        request.caller = caller  # type: ignore[attr-defined]
        return caller.user, caller

    def authenticate_header(self, request: Request) -> str:
        """What a 401 says in `WWW-Authenticate`; without it DRF would answer 403."""
        return "Bearer"


class SessionOfPerson(SessionAuthentication):
    """A logged-in browser, CSRF-checked; sets `request.caller`."""

    def authenticate(self, request: Request) -> tuple[User, Any] | None:
        """The user of the session, or None."""
        found = super().authenticate(request)
        if found is not None:
            request.caller = for_user(found[0])  # type: ignore[attr-defined]
        return found
