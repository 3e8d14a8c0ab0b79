"""The demo's person and workspace, made in the database. Runs as a process of its own, when the stack is up."""

from __future__ import annotations

import secrets
from typing import Any

from django.db import transaction
from django.utils import timezone

from queue_app import auth
from queue_app.domain.states import OPEN
from queue_app.models import AgentTask, Member, PersonalAccessToken, User, Workspace
from queue_app.services import cancel, tokens

NAME, SLUG = "demo", "demo"
OLD = "demo run"


@transaction.atomic
def prepare() -> dict[str, Any]:
    """A superuser with a new password, a workspace of theirs, a new token; older tokens of the demo are revoked."""
    password = secrets.token_urlsafe(12)
    user, _ = User.objects.get_or_create(username=NAME, defaults={"email": "demo@example.invalid"})
    user.is_staff = user.is_superuser = user.is_active = True
    user.set_password(password)
    user.save()
    workspace, _ = Workspace.objects.get_or_create(slug=SLUG, defaults={"name": "Demo", "issue_prefix": "DEMO"})
    Member.objects.get_or_create(workspace=workspace, user=user, defaults={"role": Member.Role.OWNER})
    for row in PersonalAccessToken.objects.filter(user=user, name=OLD, revoked_at=None):
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
    _cancel_leftovers(user, workspace)
    secret, _row = tokens.create(user, name=OLD, workspace=workspace, days=30)
    return {
        "username": user.username,
        "password": password,
        "token": secret,
        "user_id": str(user.id),
        "workspace_id": str(workspace.id),
    }


def _cancel_leftovers(user: User, workspace: Workspace) -> None:
    """Cancel what a run of the demo that was killed has left open."""
    caller = auth.for_user(user)
    for ident in AgentTask.objects.filter(workspace=workspace, status__in=sorted(OPEN)).values_list("id", flat=True):
        cancel.cancel_task(caller, ident, note="left over by an earlier demo")
