"""Personal access tokens: made, renewed, listed, revoked. A secret is returned once and never again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from queue_app import auth
from queue_app.auth import Caller
from queue_app.errors import AuthError, InvalidError, NotFoundError
from queue_app.models import AuditEntry, PersonalAccessToken, User, Workspace
from queue_app.services.access import require_person

LIFE = timedelta(days=90)
RENEWED_WITHIN = timedelta(days=7)
LONGEST = 3650
NAME_LIMIT = 200


@dataclass(frozen=True)
class Renewal:
    """When the token ends now (None: never) and whether that was moved."""

    expires_at: datetime | None
    renewed: bool


@transaction.atomic
def create(
    user: User, *, name: str = "", workspace: Workspace | None = None, days: int | None = 90, actor: str = "server"
) -> tuple[str, PersonalAccessToken]:
    """A new token of `user`: the secret (`mul_` + 40 hex digits) and its row. `days` None makes one without end."""
    if days is not None and not 1 <= days <= LONGEST:
        raise InvalidError(f"expires_in_days: must be 1 to {LONGEST}", field="expires_in_days")
    secret, token_hash = auth.mint(auth.PERSONAL)
    row = PersonalAccessToken.objects.create(
        token_hash=token_hash,
        token_prefix=secret[:12],
        user=user,
        workspace=workspace,
        name=name[:NAME_LIMIT],
        expires_at=None if days is None else timezone.now() + timedelta(days=days),
    )
    _record(row, actor, "token.create")
    return secret, row


def renew(caller: Caller) -> Renewal:
    """Move the end of the caller's own token to 90 days from now, once less than 7 days are left.

    Raises InvalidError for any other kind of credential and AuthError when the token is gone.
    """
    if caller.kind != "user" or caller.token_id is None:
        raise InvalidError("only a personal access token can be renewed", code="not_renewable")
    with transaction.atomic():
        row = PersonalAccessToken.objects.select_for_update().filter(pk=caller.token_id, revoked_at=None).first()
        now = timezone.now()
        if row is None or (row.expires_at is not None and row.expires_at <= now):
            raise AuthError("invalid token")
        if row.expires_at is None or row.expires_at - now >= RENEWED_WITHIN:
            return Renewal(row.expires_at, False)
        row.expires_at = now + LIFE
        row.save(update_fields=["expires_at"])
        return Renewal(row.expires_at, True)


def revoke(caller: Caller, token_id: UUID | None) -> None:
    """End one of the caller's own tokens, at once. NotFoundError for any other."""
    require_person(caller)
    with transaction.atomic():
        row = _own(caller).select_for_update().filter(pk=token_id).first() if token_id is not None else None
        if row is None:
            raise NotFoundError("token not found")
        if row.revoked_at is None:
            row.revoked_at = timezone.now()
            row.save(update_fields=["revoked_at"])
            _record(row, caller.actor, "token.revoke")


def mine(caller: Caller) -> list[PersonalAccessToken]:
    """The caller's tokens that still count, newest first."""
    require_person(caller)
    rows = _own(caller).filter(revoked_at__isnull=True)
    return list(rows.exclude(expires_at__lte=Now()).order_by("-created_at"))


def _own(caller: Caller) -> QuerySet[PersonalAccessToken]:
    """The caller's tokens; a token of one workspace sees and ends none that reaches further."""
    rows = PersonalAccessToken.objects.filter(user=caller.user)
    return rows if caller.workspace_id is None else rows.filter(workspace_id=caller.workspace_id)


def _record(row: PersonalAccessToken, actor: str, verb: str) -> None:
    AuditEntry.objects.create(
        workspace_id=row.workspace_id,
        actor_id=row.user_id,
        actor=actor,
        verb=verb,
        object_type="token",
        object_id=row.pk,
        detail={"name": row.name, "prefix": row.token_prefix},
    )
