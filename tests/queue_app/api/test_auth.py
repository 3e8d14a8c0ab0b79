"""Who is calling: what tokens open, what they cost, and how fast they stop counting."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from queue_app import auth
from queue_app.errors import AuthError, ForbiddenError
from queue_app.models import AuditEntry, Member, PersonalAccessToken, TaskToken, Workspace
from queue_app.services import tokens
from queue_app.sql.door import parameters
from tests.support import factories
from tests.support.machine import Machine

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def machine() -> Machine:
    return Machine.make()


def bearer(secret: str) -> str:
    return f"Bearer {secret}"


def statements_of(secret: str) -> int:
    with CaptureQueriesContext(connection) as seen:
        auth.authenticate(bearer(secret))
    return len(seen)


def behind(sql: str, *params: Any) -> None:
    """A change that this process is not told of, as another replica or a hand makes it."""
    with psycopg.connect(**parameters("test-other"), autocommit=True) as other:
        other.execute(sql, params)


def test_a_known_token_costs_no_statement_and_knows_its_workspaces(machine: Machine) -> None:
    assert statements_of(machine.secret) > 0
    for _ in range(5):
        assert statements_of(machine.secret) == 0
    caller = auth.authenticate(bearer(machine.secret))
    with CaptureQueriesContext(connection) as seen:
        assert auth.workspace_ids(caller) == {machine.workspace.pk}
    assert len(seen) == 0
    assert (caller.kind, caller.actor) == ("user", f"user:{machine.user.pk}")


def test_idle_polls_with_warm_caches_run_no_statement_at_all(machine: Machine) -> None:
    """Design D8: authentication, verdict and answer without the database, seen from its own side too."""
    body = {"daemon_id": machine.runtime.daemon_id, "runtime_ids": [str(machine.runtime.pk)], "max_tasks": 5}
    for _ in range(2):
        assert machine.post("tasks/claim", body).json() == {"tasks": []}
    look = """SELECT max(query_start) FROM pg_stat_activity
               WHERE application_name = 'multica-claim' AND datname = current_database()"""
    with connection.cursor() as cursor:
        cursor.execute(look)
        before = cursor.fetchone()
    with CaptureQueriesContext(connection) as seen:
        for _ in range(50):
            assert machine.post("tasks/claim", body).json() == {"tasks": []}
    assert [query["sql"] for query in seen.captured_queries] == []
    with connection.cursor() as cursor:
        cursor.execute(look)
        assert cursor.fetchone() == before


def test_a_revoked_token_ends_at_once(machine: Machine) -> None:
    other, row = tokens.create(machine.user)
    auth.authenticate(bearer(other))
    answer = machine.request("DELETE", f"/api/tokens/{row.pk}")
    assert answer.status_code == 204
    with pytest.raises(AuthError, match="invalid token"):
        auth.authenticate(bearer(other))
    assert machine.request("DELETE", f"/api/tokens/{row.pk}").status_code == 204
    assert machine.request("DELETE", f"/api/tokens/{uuid4()}").status_code == 404


def test_a_revocation_elsewhere_ends_it_by_the_epoch(machine: Machine) -> None:
    """Another replica draws a new epoch; what this one keeps is looked up again."""
    auth.authenticate(bearer(machine.secret))
    behind("UPDATE personal_access_token SET revoked_at = now()")
    assert statements_of(machine.secret) == 0
    auth._draw_epoch()
    with pytest.raises(AuthError):
        auth.authenticate(bearer(machine.secret))


def test_a_flushed_redis_does_not_bring_back_an_old_epoch(machine: Machine, redis_url: str) -> None:
    import redis

    auth.authenticate(bearer(machine.secret))
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    assert statements_of(machine.secret) > 0


def test_without_redis_a_token_is_kept_for_fifteen_seconds(
    machine: Machine, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_URL = ""
    auth.authenticate(bearer(machine.secret))
    behind("UPDATE personal_access_token SET revoked_at = now()")
    assert statements_of(machine.secret) == 0
    later = time.monotonic() + auth.KEPT_ALONE
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with pytest.raises(AuthError):
        auth.authenticate(bearer(machine.secret))


def test_a_membership_counts_from_its_commit_and_ends_with_it(machine: Machine) -> None:
    other = factories.make_workspace()
    auth.authenticate(bearer(machine.secret))
    member = Member.objects.create(workspace=other, user=machine.user)
    assert auth.workspace_ids(auth.authenticate(bearer(machine.secret))) == {machine.workspace.pk, other.pk}
    member.delete()
    assert auth.workspace_ids(auth.authenticate(bearer(machine.secret))) == {machine.workspace.pk}


def test_a_disabled_user_is_refused_at_once_with_403(machine: Machine) -> None:
    auth.authenticate(bearer(machine.secret))
    machine.user.is_active = False
    machine.user.save()
    with pytest.raises(ForbiddenError):
        auth.authenticate(bearer(machine.secret))
    assert machine.get("workspaces").status_code == 403


def test_a_login_forgets_nothing(machine: Machine) -> None:
    """Django writes the user at every login; the tokens of all daemons need not be read again for that."""
    auth.authenticate(bearer(machine.secret))
    machine.user.last_login = timezone.now()
    machine.user.save(update_fields=["last_login"])
    assert statements_of(machine.secret) == 0


def test_an_expired_token_is_refused_also_when_it_was_known(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    row = PersonalAccessToken.objects.get(user=machine.user)
    PersonalAccessToken.objects.filter(pk=row.pk).update(expires_at=timezone.now() + timedelta(seconds=30))
    auth.authenticate(bearer(machine.secret))
    PersonalAccessToken.objects.filter(pk=row.pk).update(expires_at=timezone.now())
    assert statements_of(machine.secret) == 0
    later = time.monotonic() + 31
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with pytest.raises(AuthError):
        auth.authenticate(bearer(machine.secret))


def test_a_token_of_one_workspace_reaches_no_other(machine: Machine) -> None:
    factories.make_workspace(machine.user)
    secret, _ = tokens.create(machine.user, workspace=machine.workspace)
    assert auth.workspace_ids(auth.authenticate(bearer(secret))) == {machine.workspace.pk}
    listed = machine.request("GET", "/api/workspaces", secret=secret).json()
    assert [row["id"] for row in listed] == [str(machine.workspace.pk)]


def test_only_hashes_are_stored(machine: Machine) -> None:
    row = PersonalAccessToken.objects.get(user=machine.user)
    assert re.fullmatch(r"mul_[0-9a-f]{40}", machine.secret)
    assert row.token_hash == auth.hash_of(machine.secret)
    assert machine.secret not in str(PersonalAccessToken.objects.values())
    assert machine.secret not in str(AuditEntry.objects.values())


# ----------------------------------------------------------------------------------------------------- task tokens


def task_secret(machine: Machine, **fields: Any) -> str:
    task = machine.claimed()
    secret, token_hash = auth.mint(auth.TASK)
    values: dict[str, Any] = {
        "token_hash": token_hash,
        "task": task,
        "claim_token": task.claim_token,
        "agent": machine.agent,
        "workspace": machine.workspace,
        "user": machine.user,
        "expires_at": timezone.now() + timedelta(days=1),
    }
    TaskToken.objects.create(**{**values, **fields})
    return secret


def test_a_task_token_acts_as_its_task_in_its_workspace_only(machine: Machine) -> None:
    factories.make_workspace(machine.user)
    caller = auth.authenticate(bearer(task_secret(machine)))
    assert caller.task is not None
    assert (caller.kind, caller.actor, caller.agent_id) == ("task", f"task:{caller.task.pk}", machine.agent.pk)
    assert auth.workspace_ids(caller) == {machine.workspace.pk}


@pytest.mark.parametrize(
    "fields",
    [
        {"expires_at": "2000-01-01T00:00:00Z"},
        {"revoked_at": "2000-01-01T00:00:00Z"},
        {"claim_token": uuid4()},
    ],
    ids=["expired", "revoked", "old-delivery"],
)
def test_a_task_token_that_does_not_count_is_refused(machine: Machine, fields: dict[str, Any]) -> None:
    with pytest.raises(AuthError, match="invalid token"):
        auth.authenticate(bearer(task_secret(machine, **fields)))


def test_a_task_token_ends_with_its_task(machine: Machine) -> None:
    """Also for an agent that survived its cancellation: what it posts afterwards is refused."""
    secret = task_secret(machine)
    caller = auth.authenticate(bearer(secret))
    assert caller.task is not None
    assert machine.request("POST", f"/api/tasks/{caller.task.pk}/cancel").status_code == 200
    TaskToken.objects.update(revoked_at=None)
    with pytest.raises(AuthError):
        auth.authenticate(bearer(secret))


def test_a_task_may_not_touch_tokens(machine: Machine) -> None:
    secret = task_secret(machine)
    row = PersonalAccessToken.objects.get(user=machine.user)
    assert machine.request("GET", "/api/tokens", secret=secret).status_code == 403
    assert machine.request("POST", "/api/tokens", {"name": "x"}, secret=secret).status_code == 403
    assert machine.request("DELETE", f"/api/tokens/{row.pk}", secret=secret).status_code == 403
    assert machine.request("POST", "/api/tokens/current/renew", secret=secret).status_code == 403
    me = machine.request("GET", "/api/me", secret=secret).json()
    assert (me["kind"], me["agent_id"]) == ("task", str(machine.agent.pk))


# ------------------------------------------------------------------------------------------- renewal, account, commands


@pytest.mark.parametrize(("days", "renewed"), [(90, False), (7.5, False), (6.9, True), (0.01, True)])
def test_a_token_is_renewed_only_in_its_last_week(machine: Machine, days: float, renewed: bool) -> None:
    """TK-01, server half: 90 days from now; the secret stays."""
    end = timezone.now() + timedelta(days=days)
    PersonalAccessToken.objects.filter(user=machine.user).update(expires_at=end)
    answer = machine.request("POST", "/api/tokens/current/renew").json()
    row = PersonalAccessToken.objects.get(user=machine.user)
    assert row.expires_at is not None
    assert answer["renewed"] is renewed
    expected = timezone.now() + timedelta(days=90) if renewed else end
    assert abs((row.expires_at - expected).total_seconds()) < 60
    assert answer["expires_at"].startswith(row.expires_at.strftime("%Y-%m-%dT%H:%M:%S"))


def test_a_token_without_end_and_one_that_is_over(machine: Machine) -> None:
    rows = PersonalAccessToken.objects.filter(user=machine.user)
    rows.update(expires_at=None)
    renew = "/api/tokens/current/renew"
    assert machine.request("POST", renew).json() == {"expires_at": "", "renewed": False}
    rows.update(revoked_at=timezone.now())
    # Even while the token is still known here, its renewal reads the row.
    assert machine.request("POST", renew).status_code == 401


def test_a_token_is_shown_once_and_works(machine: Machine) -> None:
    made = machine.request("POST", "/api/tokens", {"name": "laptop", "expires_in_days": 30})
    assert made.status_code == 201
    secret = made.json()["token"]
    assert machine.request("GET", "/api/me", secret=secret).json()["email"] == machine.user.email
    listed = machine.request("GET", "/api/tokens", secret=secret).json()
    assert {row["name"] for row in listed} == {"laptop", "test"}
    assert secret not in str(listed)
    for body, field in (({"expires_in_days": 0}, "expires_in_days"), ({"workspace_id": "x"}, "workspace_id")):
        refused = machine.request("POST", "/api/tokens", body)
        assert (refused.status_code, refused.json()["field"]) == (400, field)


def test_a_token_of_one_workspace_makes_no_wider_one(machine: Machine) -> None:
    other = factories.make_workspace(machine.user)
    narrow, _ = tokens.create(machine.user, workspace=machine.workspace)
    made = machine.request("POST", "/api/tokens", {"name": "x"}, secret=narrow).json()
    assert made["workspace_id"] == str(machine.workspace.pk)
    wider = machine.request("POST", "/api/tokens", {"workspace_id": str(other.pk)}, secret=narrow)
    assert wider.status_code == 404
    wide = PersonalAccessToken.objects.get(name="test")
    assert str(wide.pk) not in str(machine.request("GET", "/api/tokens", secret=narrow).json())
    assert machine.request("DELETE", f"/api/tokens/{wide.pk}", secret=narrow).status_code == 404


def test_commands_make_a_workspace_and_a_token(machine: Machine) -> None:
    name = machine.user.username
    workspace = run("createworkspace", "New place", "--owner", name)
    assert Workspace.objects.get(pk=workspace).slug == "new-place"
    secret = run("createtoken", name, "--workspace", "new-place", "--name", "host")
    assert auth.workspace_ids(auth.authenticate(bearer(secret))) == {Workspace.objects.get(slug="new-place").pk}
    assert PersonalAccessToken.objects.get(name="host").expires_at is not None
    for wrong in (
        ("createtoken", "nobody"),
        ("createtoken", name, "--workspace", "nowhere"),
        ("createtoken", name, "--days", "99999"),
        ("createworkspace", "New place", "--owner", name),
        ("createworkspace", "X", "--owner", "nobody"),
        ("createworkspace", "X", "--owner", name, "--prefix", "A B"),
    ):
        with pytest.raises(CommandError):
            run(*wrong)


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue().strip()
