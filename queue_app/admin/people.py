"""Users and their tokens. Hashes are never shown; a secret is shown once, on the page that answers its making."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from queue_app.admin import acts
from queue_app.admin.base import Page, label, may
from queue_app.auth import Caller
from queue_app.models import AuditEntry, PersonalAccessToken, User
from queue_app.services import tokens


@admin.register(User)
class UserAdmin(Page, DjangoUserAdmin):  # type: ignore[type-arg]
    """People. Nobody is deleted: what they did stays theirs; an inactive user can do nothing."""

    list_display = ("username", "email", "is_active", "is_staff", "is_superuser", "last_login")
    readonly_fields = ("last_login", "date_joined")


def _revoke(caller: Caller, row: PersonalAccessToken, data: dict[str, Any]) -> None:
    with transaction.atomic():
        held = PersonalAccessToken.objects.select_for_update().get(id=row.id)
        if held.revoked_at is not None:
            raise acts.Skipped("it is revoked already")
        held.revoked_at = timezone.now()
        held.save(update_fields=["revoked_at"])
        AuditEntry.objects.create(
            workspace_id=held.workspace_id,
            actor_id=caller.user.id,
            actor=caller.actor,
            verb="token.revoke",
            object_type="token",
            object_id=held.id,
            note=data["note"],
            detail={"name": held.name, "prefix": held.token_prefix},
        )


REVOKE = acts.Act(
    "revoke_tokens",
    "Revoke tokens",
    "They stop working at once, for daemons too.",
    lambda request: may(request, "personalaccesstoken"),
    _revoke,
)


class NewTokenForm(forms.ModelForm):  # type: ignore[type-arg]
    days = forms.IntegerField(min_value=1, max_value=tokens.LONGEST, initial=90, help_text="days until it expires")

    class Meta:
        model = PersonalAccessToken
        fields = ("user", "name", "workspace")


@admin.register(PersonalAccessToken)
class PersonalAccessTokenAdmin(Page):
    list_display = ("token_prefix", "name", "user", "workspace", "state", "created_at", "last_used_at", "expires_at")
    list_select_related = ("user", "workspace")
    list_filter = (("revoked_at", admin.EmptyFieldListFilter),)
    search_fields = ("name", "token_prefix", "user__username")
    ordering = ("-id",)
    readonly_fields = (
        "token_prefix",
        "name",
        "user",
        "workspace",
        "state",
        "created_at",
        "last_used_at",
        "expires_at",
        "revoked_at",
    )
    actions = ("revoke_tokens",)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        return super().get_form(request, obj, change=change, **({} if change else {"form": NewTokenForm}), **kwargs)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.readonly_fields if obj is not None else ("user", "name", "workspace", "days")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.readonly_fields if obj is not None else ()

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: PersonalAccessToken, form: Any, change: bool) -> None:
        secret, row = tokens.create(
            obj.user,
            name=obj.name,
            workspace=obj.workspace,
            days=form.cleaned_data["days"],
            actor=f"user:{request.user.pk}",
        )
        obj.pk, obj.created_at, obj._state.adding = row.pk, row.created_at, False
        request.new_secret = secret  # type: ignore[attr-defined]

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: Any = None) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": "Token made",
            "secret": request.new_secret,  # type: ignore[attr-defined]
            "opts": self.opts,
        }
        return TemplateResponse(request, "admin/queue_app/new_token.html", context)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return REVOKE.allowed(request)

    @admin.action(description="Revoke…", permissions=["revoke"])
    def revoke_tokens(self, request: HttpRequest, queryset: QuerySet[PersonalAccessToken]) -> HttpResponse | None:
        return acts.run(self, request, queryset, REVOKE)

    @admin.display(description="state")
    def state(self, row: PersonalAccessToken) -> str:
        if row.revoked_at is not None:
            return label("revoked", "idle")
        now = timezone.now()
        if row.expires_at is not None and row.expires_at <= now:
            return label("expired", "idle")
        soon = row.expires_at is not None and row.expires_at - now < timedelta(days=7)
        return label("ends soon", "calm") if soon else label("valid", "good")
