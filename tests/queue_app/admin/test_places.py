"""Agents, runtimes, workspaces and tokens in the admin: configuration is editable, state is not, secrets never show."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models.signals import pre_save
from django.test import Client
from django.utils import timezone

from queue_app import auth
from queue_app.models import Agent, AgentRuntime, AuditEntry, Member, PersonalAccessToken, RuntimeProfile, Workspace
from tests.support import factories

pytestmark = pytest.mark.django_db

AGENTS, RUNTIMES = "/admin/queue_app/agent/", "/admin/queue_app/agentruntime/"
SECRET = "s3cret-of-the-agent"


def form_of(client: Client, page: str) -> dict[str, Any]:
    """What a browser would send back from a page's form."""
    form = client.get(page).context["adminform"].form
    values = {name: form[name].value() for name in form.fields}
    return {name: "" if value is None else value for name, value in values.items()}


def act(client: Client, page: str, verb: str, row: Any, **fields: Any) -> str:
    data = {"action": verb, ACTION_CHECKBOX_NAME: [str(row.pk)], "confirmed": "1", "note": "because", **fields}
    return client.post(page, data, follow=True).content.decode()


def test_an_agents_configuration_is_edited_and_its_state_is_not(client: Client, agent: Agent) -> None:
    """Q-06, AD-01: status and pause are not fields of the form; forcing them in changes nothing."""
    page = f"{AGENTS}{agent.id}/change/"
    data = form_of(client, page)
    assert "status" not in data
    data |= {
        "max_concurrent_tasks": "3",
        "custom_args": '["--fast"]',
        "new_custom_env": f'{{"KEY": "{SECRET}"}}',
        "status": "blocked",
        "paused_at": "2026-01-01",
        "kind": "root",
    }
    answer = client.post(page, data)
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    agent.refresh_from_db()
    assert (agent.max_concurrent_tasks, agent.custom_args, agent.custom_env) == (3, ["--fast"], {"KEY": SECRET})
    assert (agent.status, agent.paused_at, agent.kind) == ("idle", None, "user")
    assert SECRET not in client.get(page).content.decode()
    entry = AuditEntry.objects.get(object_id=agent.id)
    assert entry.verb == "agent.update"
    assert SECRET not in str(entry.detail)
    keep = form_of(client, page)
    client.post(page, keep)
    agent.refresh_from_db()
    assert agent.custom_env == {"KEY": SECRET}


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_concurrent_tasks", "51"), ("custom_args", '"x"'), ("new_custom_env", '{"A": 1}'), ("new_custom_env", "[]")],
)
def test_a_wrong_configuration_is_refused(client: Client, agent: Agent, field: str, value: str) -> None:
    page = f"{AGENTS}{agent.id}/change/"
    answer = client.post(page, {**form_of(client, page), field: value})
    assert field in answer.context["adminform"].form.errors


def test_a_runtime_of_another_workspace_is_refused(client: Client, agent: Agent) -> None:
    foreign = factories.make_runtime(factories.make_workspace())
    page = f"{AGENTS}{agent.id}/change/"
    answer = client.post(page, {**form_of(client, page), "runtime": str(foreign.id)})
    assert "runtime" in answer.context["adminform"].form.errors


@pytest.mark.parametrize("kind", [Agent, AgentRuntime])
def test_pausing_and_resuming_are_audited_verbs(client: Client, agent: Agent, kind: type[Any]) -> None:
    page = AGENTS if kind is Agent else RUNTIMES
    row: Any = agent if kind is Agent else agent.runtime
    assert "1 done, 0 skipped" in act(client, page, "pause_rows", row, minutes="5")
    row.refresh_from_db()
    assert row.paused_at is not None
    assert timedelta(minutes=4) < row.paused_until - timezone.now() < timedelta(minutes=6)
    assert row.pause_note == "because"
    assert "1 done" in act(client, page, "pause_rows", row, minutes="")
    assert "0 done, 1 skipped" in act(client, page, "pause_rows", row, minutes="5")
    assert "1 done" in act(client, page, "resume_rows", row)
    assert "0 done, 1 skipped" in act(client, page, "resume_rows", row)
    row.refresh_from_db()
    assert (row.paused_at, row.paused_until, row.pause_note) == (None, None, "")
    verbs = list(AuditEntry.objects.filter(object_id=row.pk).order_by("created_at").values_list("verb", flat=True))
    assert verbs == ["pause", "pause", "resume"]


def test_a_runtimes_state_is_reported_by_its_daemon_alone(client: Client, agent: Agent) -> None:
    page = f"{RUNTIMES}{agent.runtime_id}/change/"
    data = form_of(client, page)
    assert set(data) == {"custom_name"}
    client.post(page, {"custom_name": "Desk", "status": "offline", "last_seen_at": "2020-01-01", "daemon_id": "x"})
    before = agent.runtime
    assert before is not None
    after = AgentRuntime.objects.get(id=before.id)
    assert (after.custom_name, after.status, after.daemon_id) == ("Desk", "online", before.daemon_id)
    assert client.get(f"{RUNTIMES}add/").status_code == 403


def test_editing_a_workspace_never_turns_back_the_counter_of_issues(client: Client, agent: Agent) -> None:
    page = f"/admin/queue_app/workspace/{agent.workspace_id}/change/"
    data = {**form_of(client, page), "name": "Renamed", "repos": '[{"url": "/srv/x"}]', "issue_counter": "0"}
    data |= {"members-TOTAL_FORMS": "0", "members-INITIAL_FORMS": "0"}

    def issue_is_filed(sender: type[Workspace], **_: Any) -> None:
        # Between the moment when the form read the row and the moment when it writes it.
        sender.objects.filter(id=agent.workspace_id).update(issue_counter=41)

    pre_save.connect(issue_is_filed, sender=Workspace)
    try:
        assert client.post(page, data).status_code == 302
    finally:
        pre_save.disconnect(issue_is_filed, sender=Workspace)
    workspace = Workspace.objects.get(id=agent.workspace_id)
    assert (workspace.name, workspace.issue_counter, workspace.repos) == ("Renamed", 41, [{"url": "/srv/x"}])


def test_a_new_workspace_belongs_to_its_maker(client: Client) -> None:
    data = {"name": "New", "slug": "new", "issue_prefix": "NEW", "repos": "[]"}
    data |= {"members-TOTAL_FORMS": "0", "members-INITIAL_FORMS": "0"}
    answer = client.post("/admin/queue_app/workspace/add/", data)
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    member = Member.objects.get(workspace__slug="new")
    assert (str(member.user_id), member.role) == (client.session["_auth_user_id"], "owner")


def test_a_profile_is_made_in_the_admin(client: Client, agent: Agent) -> None:
    data = {
        "workspace": str(agent.workspace_id),
        "display_name": "Mine",
        "protocol_family": "plain",
        "visibility": "workspace",
    }
    answer = client.post("/admin/queue_app/runtimeprofile/add/", {**data, "command_name": "true", "fixed_args": "[]"})
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert RuntimeProfile.objects.get(display_name="Mine").command_name == "true"


def test_a_token_is_shown_once_and_never_its_hash(client: Client, agent: Agent) -> None:
    """AD-13: the page that answers the making holds the secret; no other page holds it or its hash."""
    assert agent.owner is not None
    made = client.post(
        "/admin/queue_app/personalaccesstoken/add/",
        {"user": str(agent.owner.pk), "name": "laptop", "workspace": "", "days": "30"},
    )
    secret = made.context["secret"]
    assert secret in made.content.decode()
    assert "no-store" in made["Cache-Control"]
    row = PersonalAccessToken.objects.get(name="laptop")
    assert auth.authenticate(f"Bearer {secret}").user == agent.owner
    for page in ("/admin/queue_app/personalaccesstoken/", f"/admin/queue_app/personalaccesstoken/{row.id}/change/"):
        body = client.get(page).content.decode()
        assert secret not in body
        assert row.token_hash not in body
    assert "1 done" in act(client, "/admin/queue_app/personalaccesstoken/", "revoke_tokens", row)
    with pytest.raises(auth.AuthError):
        auth.authenticate(f"Bearer {secret}")
    assert AuditEntry.objects.filter(object_id=row.id, verb="token.revoke").count() == 1


def test_every_page_opens(client: Client, agent: Agent) -> None:
    from django.contrib import admin

    for model in admin.site._registry:
        if model._meta.app_label in ("queue_app", "cron_app"):
            url = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
            assert client.get(url).status_code == 200, url
            row = model._default_manager.first()
            if row is not None:
                assert client.get(f"{url}{row.pk}/change/").status_code == 200, url
    assert client.get(f"/admin/queue_app/user/{agent.owner_id}/change/").status_code == 200
