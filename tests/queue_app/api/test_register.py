"""Registration: the same machine is always the same row, and nothing that is not named is touched."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections

from queue_app.auth import for_user
from queue_app.models import AgentRuntime, RuntimeProfile
from queue_app.services import register as service
from queue_app.wire.daemon import Register, RuntimeEntry
from tests.support import factories
from tests.support.machine import Machine

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def machine() -> Machine:
    return Machine.make()


def body(machine: Machine, *types: str, daemon_id: str = "d-1", **fields: Any) -> dict[str, Any]:
    runtimes = [{"name": f"{kind} (host)", "type": kind, "version": "1", "status": "online"} for kind in types]
    return {"workspace_id": str(machine.workspace.pk), "daemon_id": daemon_id, "runtimes": runtimes, **fields}


def ids(machine: Machine, *types: str, **fields: Any) -> dict[str, str]:
    answer = machine.post("register", body(machine, *types, **fields))
    assert answer.status_code == 200, answer.content
    return {row["provider"]: row["id"] for row in answer.json()["runtimes"]}


def test_ids_are_stable_and_what_is_not_named_stays_online(machine: Machine) -> None:
    """A changed id would orphan queued tasks; a discovery call names only some of the runtimes."""
    first = ids(machine, "claude", "codex")
    assert ids(machine, "claude") == {"claude": first["claude"]}
    assert ids(machine, "codex", "claude", "plain").items() >= first.items()
    assert AgentRuntime.objects.get(pk=first["codex"]).status == "online"
    assert ids(machine, "claude", daemon_id="d-2")["claude"] != first["claude"]


def test_what_the_server_learns_of_a_runtime(machine: Machine) -> None:
    headers = {"x-client-capabilities": "rpc-v1, coalesced-comments-v1"}
    call = body(machine, "claude", device_name="host", cli_version="0.4.32", launched_by="desktop")
    answer = machine.post("register", call, **headers).json()
    row = AgentRuntime.objects.get(pk=answer["runtimes"][0]["id"])
    assert (row.status, row.owner_id, row.daemon_id, row.device_info) == ("online", machine.user.pk, "d-1", "host")
    assert row.last_seen_at is not None
    assert row.metadata == {
        "version": "1",
        "cli_version": "0.4.32",
        "launched_by": "desktop",
        "device_name": "host",
        "capabilities": ["coalesced-comments-v1", "rpc-v1"],
    }


def test_a_registration_ends_the_offline_state_and_its_reason(machine: Machine) -> None:
    first = ids(machine, "claude")["claude"]
    machine.post("deregister", {"runtime_ids": [first], "offline_reasons": {first: {"code": "not_executable"}}})
    assert ids(machine, "claude")["claude"] == first
    row = AgentRuntime.objects.get(pk=first)
    assert (row.status, "offline_reason" in row.metadata) == ("online", False)


def test_the_allow_list_carries_a_version_that_is_never_empty(machine: Machine) -> None:
    empty = machine.post("register", body(machine, "claude")).json()
    assert empty["repos"] == []
    assert empty["repos_version"]
    assert empty["settings"] == {"github_enabled": True, "co_authored_by_enabled": True}
    machine.workspace.repos = [{"url": "b", "ref": "main", "x": 1}, {"url": "a", "description": "A"}, {"no": "url"}]
    machine.workspace.settings = {"github_enabled": False}
    machine.workspace.save()
    full = machine.get(f"workspaces/{machine.workspace.pk}/repos").json()
    assert full["repos"] == [{"url": "b", "ref": "main"}, {"url": "a", "description": "A"}]
    assert full["repos_version"] not in ("", empty["repos_version"])
    assert full["settings"] == {"github_enabled": False, "co_authored_by_enabled": True}


def test_profiles_register_by_their_id_and_only_enabled_ones(machine: Machine) -> None:
    values: dict[str, Any] = {"workspace": machine.workspace, "protocol_family": "plain", "command_name": "x"}
    one = RuntimeProfile.objects.create(display_name="One", **values)
    two = RuntimeProfile.objects.create(display_name="Two", **values)
    entries = [{"name": p.display_name, "type": "plain", "profile_id": str(p.pk)} for p in (one, two)]
    call = {**body(machine, "plain"), "failed_profiles": []}
    call["runtimes"] += entries
    rows = machine.post("register", call).json()["runtimes"]
    assert {row["profile_id"] for row in rows} == {None, str(one.pk), str(two.pk)}
    assert {row["provider"] for row in rows} == {"plain"}
    again = machine.post("register", call).json()["runtimes"]
    assert {row["id"] for row in again} == {row["id"] for row in rows}

    two.enabled = False
    two.save()
    refused = machine.post("register", call)
    assert (refused.status_code, refused.json()["code"]) == (409, "profile_disabled")
    entries[0]["profile_id"] = str(uuid4())
    unknown = machine.post("register", {**call, "runtimes": entries[:1]})
    assert (unknown.status_code, unknown.json()["field"]) == (400, "runtimes[0].profile_id")


def test_only_failed_profiles_may_come_without_a_runtime(machine: Machine) -> None:
    call = body(machine)
    assert machine.post("register", call).json()["field"] == "runtimes"
    failed = [{"profile_id": str(uuid4()), "command_name": "x", "reason": "not found"}]
    answer = machine.post("register", {**call, "failed_profiles": failed})
    assert (answer.status_code, answer.json()["runtimes"]) == (200, [])


def test_what_is_missing_is_named(machine: Machine) -> None:
    for field in ("workspace_id", "daemon_id"):
        answer = machine.post("register", {**body(machine, "claude"), field: ""})
        assert (answer.status_code, answer.json()["field"]) == (400, field)
    answer = machine.post("register", body(machine, ""))
    assert (answer.status_code, answer.json()["field"]) == (400, "runtimes[0].type")
    for workspace in (str(uuid4()), "garbage", str(factories.make_workspace().pk)):
        answer = machine.post("register", {**body(machine, "claude"), "workspace_id": workspace})
        assert (answer.status_code, answer.json()["error"]) == (404, "workspace not found")


def test_a_machine_with_a_new_id_keeps_its_rows(machine: Machine) -> None:
    """Rows of its own user under a former id are adopted; those of others and present ones are left alone."""
    old = ids(machine, "claude", "codex", daemon_id="hostname.local")
    present = ids(machine, "codex", daemon_id="d-new")
    other = factories.make_runtime(
        machine.workspace, daemon_id="hostname", provider="plain", owner=factories.make_user()
    )
    legacy = {"legacy_daemon_ids": ["hostname.local", "hostname", ""]}
    now = ids(machine, "claude", "codex", "plain", daemon_id="d-new", **legacy)
    assert now["claude"] == old["claude"]
    assert now["codex"] == present["codex"] != old["codex"]
    assert now["plain"] != str(other.pk)
    other.refresh_from_db()
    assert other.daemon_id == "hostname"


def test_fifty_registrations_at_once_make_one_row(machine: Machine) -> None:
    """All see the same id; none fails. Without ON CONFLICT on the right index some would be refused as duplicates."""
    everyone = threading.Barrier(50)
    caller = for_user(machine.user)
    runtimes = [RuntimeEntry(name=kind, type=kind) for kind in ("codex", "claude", "plain")]

    def one(number: int) -> frozenset[str]:
        try:
            call = Register(workspace_id=str(machine.workspace.pk), daemon_id="race")
            call.runtimes = runtimes if number % 2 else runtimes[::-1]
            everyone.wait(30)
            return frozenset(row["id"] for row in service.register(caller, call)["runtimes"])
        finally:
            connections.close_all()

    with ThreadPoolExecutor(50) as threads:
        seen = set(threads.map(one, range(50)))
    assert len(seen) == 1
    assert AgentRuntime.objects.filter(daemon_id="race").count() == 3
