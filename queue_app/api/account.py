"""Who I am, where I work, and my tokens: for people, command lines and tasks."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.work.base import WorkView, caller_of, checked, ident
from queue_app.auth import BearerAuthentication, SessionOfPerson
from queue_app.models import PersonalAccessToken, User, Workspace
from queue_app.services import access, tokens, workspaces


class AccountView(WorkView):
    """A bearer token, or a browser's session."""

    authentication_classes = (BearerAuthentication, SessionOfPerson)


def name_of(user: User) -> str:
    """What to call a person."""
    return user.get_full_name() or user.get_username()


class MeView(AccountView):
    """`GET /api/me`: the person behind the token; for a task's token also which task and agent acts."""

    def get(self, request: Request) -> Response:
        """Name, address and, for a task, its ids."""
        caller = caller_of(request)
        user = caller.user
        body: dict[str, Any] = {
            "id": str(user.pk),
            "name": name_of(user),
            "email": user.email,
            "username": user.get_username(),
            "kind": caller.kind,
            "profile_description": "",
        }
        if caller.task is not None:
            body |= {"task_id": str(caller.task.pk), "agent_id": str(caller.agent_id)}
        return Response(body)


class WorkspacesView(AccountView):
    """`GET /api/workspaces`: a bare array, never in pages, because command lines and old daemons read it so."""

    def get(self, request: Request) -> Response:
        """Every workspace that the token reaches."""
        return Response([_workspace(row) for row in workspaces.mine(caller_of(request))])


def _workspace(row: Workspace) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "name": row.name,
        "slug": row.slug,
        "description": row.description,
        "context": row.context,
        "settings": row.settings,
        "repos": row.repos,
        "issue_prefix": row.issue_prefix,
        "avatar_url": None,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


class TokenForm(serializers.Serializer[Any]):
    """What a new token is asked with."""

    name = serializers.CharField(max_length=tokens.NAME_LIMIT, allow_blank=True, default="")
    expires_in_days = serializers.IntegerField(min_value=1, max_value=tokens.LONGEST, allow_null=True, default=90)
    workspace_id = serializers.UUIDField(allow_null=True, default=None)


class TokensView(AccountView):
    """`/api/tokens`: the caller's own."""

    def get(self, request: Request) -> Response:
        """The tokens that still count, without their secrets."""
        return Response([_token(row) for row in tokens.mine(caller_of(request))])

    def post(self, request: Request) -> Response:
        """Make one. The answer is the only place where the secret ever stands."""
        caller = caller_of(request)
        access.require_person(caller)
        form = checked(TokenForm, request.data)
        wanted = form["workspace_id"] or caller.workspace_id
        workspace = access.workspace_of(caller, wanted) if wanted else None
        secret, row = tokens.create(
            caller.user, name=form["name"], workspace=workspace, days=form["expires_in_days"], actor=caller.actor
        )
        return Response({"token": secret, **_token(row)}, status=201)


class TokenView(AccountView):
    """`/api/tokens/{id}`."""

    def delete(self, request: Request, token_id: str) -> Response:
        """Revoke one, at once."""
        tokens.revoke(caller_of(request), ident(token_id, "token_id"))
        return Response(status=204)


def _token(row: PersonalAccessToken) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "name": row.name,
        "token_prefix": row.token_prefix,
        "workspace_id": str(row.workspace_id) if row.workspace_id else None,
        "expires_at": row.expires_at,
        "last_used_at": row.last_used_at,
        "created_at": row.created_at,
    }
