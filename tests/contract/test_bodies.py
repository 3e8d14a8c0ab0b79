"""What daemons really send: nulls, blanks, unknown fields, odd bytes, long texts; and how large a body may be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection

from queue_app.api.daemon import door
from queue_app.models import AgentRuntime, AgentTask, TaskMessage, TaskProgress, TaskUsage
from queue_app.services import append_messages
from queue_app.sql.door import parameters
from tests.support.machine import Machine, fresh, row_text

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def machine() -> Machine:
    return Machine.make()


def started(machine: Machine) -> tuple[AgentTask, dict[str, Any]]:
    task = machine.claimed()
    token = {"claim_token": str(task.claim_token)}
    assert machine.post(f"tasks/{task.pk}/start", token).status_code == 200
    return task, token


def test_a_registration_with_nulls_blanks_and_unknown_fields_is_read(machine: Machine) -> None:
    body: dict[str, Any] = {
        "workspace_id": str(machine.workspace.pk),
        "daemon_id": "d-1",
        "legacy_daemon_ids": None,
        "device_name": None,
        "cli_version": "",
        "launched_by": "",
        "failed_profiles": None,
        "runtimes": [{"name": "", "type": "Claude", "version": "", "status": "online", "profile_id": None, "new": {}}],
        "from_the_future": {"a": [1]},
    }
    answer = machine.post("register", body)
    assert answer.status_code == 200, answer.content
    (runtime,) = answer.json()["runtimes"]
    assert (runtime["provider"], runtime["name"], runtime["profile_id"]) == ("claude", "claude", None)


def test_an_empty_body_and_a_literal_null_are_an_empty_object(machine: Machine) -> None:
    task = machine.claimed()
    assert machine.post(f"runtimes/{machine.runtime.pk}/tasks/{task.pk}/prepare-lease", b"").status_code == 200
    assert machine.post(f"tasks/{task.pk}/start", b"null").status_code == 200
    assert machine.post(f"tasks/{task.pk}/start", b"  \n").status_code == 200


@pytest.mark.parametrize(("text", "clean"), [("a\x00b", "ab"), ("a\x00b\ud800c\x07", "ab\ufffdc\x07")])
def test_texts_that_the_database_cannot_hold_are_stored_without_the_offence(
    machine: Machine, text: str, clean: str
) -> None:
    """NUL, lone surrogates, control characters and broken UTF-8, in every report, also inside a tool's input."""
    task, token = started(machine)
    nasty = json.dumps(text)[1:-1]
    pieces: dict[str, str] = {
        "progress": f'"summary":"{nasty}"',
        "messages": f'"messages":[{{"seq":1,"type":"text","content":"{nasty}",'
        f'"input":{{"k{nasty}":["{nasty}",null]}},"output":"{nasty}","tool":"{nasty}"}}]',
        "session": f'"session_id":"{nasty}","work_dir":"/w/{nasty}"',
        "usage": f'"usage":[{{"provider":"{nasty}","model":"{nasty}","input_tokens":1}}]',
        "complete": f'"output":"{nasty}","branch_name":"{nasty}"',
    }
    for name, piece in pieces.items():
        body = f'{{"claim_token":"{token["claim_token"]}",{piece}}}'.encode()
        assert machine.post(f"tasks/{task.pk}/{name}", body).status_code == 200, name
    message = TaskMessage.objects.get(task=task)
    assert (message.content, message.output, message.tool) == (clean, clean, clean)
    assert message.input == {f"k{clean}": [clean, None]}
    assert TaskProgress.objects.get(task=task).summary == clean
    assert TaskUsage.objects.get(task=task).model == clean
    row = fresh(task)
    assert row.session_id == clean
    assert row.result is not None
    assert row.result["output"] == clean


def test_broken_utf_8_does_not_cost_a_result(machine: Machine) -> None:
    task, token = started(machine)
    body = b'{"claim_token":"' + token["claim_token"].encode() + b'","output":"x\xff\xfey"}'
    assert machine.post(f"tasks/{task.pk}/complete", body).status_code == 200
    assert fresh(task).result == {"output": "x��y"}


@pytest.mark.parametrize(
    ("wrong", "kept"),
    [
        ({"session_id": 5, "output": "fine"}, {"output": "fine"}),
        ({"output": {"a": [1, None]}}, {"output": '{"a":[1,null]}'}),
        ({"output": None}, {"output": ""}),
        ({"session_rollout_missing": {}, "branch_name": [], "output": "x"}, {"output": "x"}),
    ],
)
def test_a_result_is_not_refused_for_a_detail(machine: Machine, wrong: dict[str, Any], kept: dict[str, Any]) -> None:
    """A 4xx on `complete` makes the daemon turn it into a `fail`, so a field that cannot be read is left out."""
    task, token = started(machine)
    answer = machine.post(f"tasks/{task.pk}/complete", {**token, **wrong})
    assert answer.status_code == 200, answer.content
    assert fresh(task).result == kept


def test_a_token_of_the_wrong_type_in_a_result_counts_as_none(machine: Machine) -> None:
    task, _ = started(machine)
    assert machine.post(f"tasks/{task.pk}/complete", {"claim_token": 7, "output": "x"}).status_code == 200
    assert fresh(task).status == "completed"


def test_a_batch_larger_than_djangos_default_is_taken(machine: Machine) -> None:
    """2.5 MB is where Django stops by default; a transcript batch and a long result are larger."""
    task, token = started(machine)
    big = "x" * (3 * 1024 * 1024)
    body = {**token, "messages": [{"seq": n, "type": "tool_result", "output": big[: 400 * 1024]} for n in range(1, 9)]}
    assert machine.post(f"tasks/{task.pk}/messages", body).json() == {"stored": 8}
    assert machine.post(f"tasks/{task.pk}/complete", {**token, "output": big}).status_code == 200
    row = fresh(task)
    assert row.result is not None
    assert len(row.result["output"]) == len(big)


def test_a_body_over_the_limit_of_its_route_is_refused_unread(machine: Machine) -> None:
    task, token = started(machine)
    before = row_text(task.pk)
    for name, limit in (("session", door.SMALL), ("messages", door.LARGE)):
        answer = machine.post(f"tasks/{task.pk}/{name}", {**token, "session_id": "x" * limit, "messages": []})
        assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (413, "too_large", "body"), name
    assert row_text(task.pk) == before


def test_a_long_field_is_cut_with_a_mark(machine: Machine) -> None:
    task, token = started(machine)
    long = "y" * (append_messages.FIELD_LIMIT + 1)
    body = {**token, "messages": [{"seq": 1, "type": "text", "content": long}]}
    assert machine.post(f"tasks/{task.pk}/messages", body).status_code == 200
    content = TaskMessage.objects.get(task=task).content
    assert content.endswith(f"[cut at {append_messages.FIELD_LIMIT} characters]")


def test_a_body_without_a_length_is_not_taken_for_an_empty_one(machine: Machine) -> None:
    """A chunked body has no length for WSGI: read as empty, a result would be lost without a word."""
    task, _ = started(machine)
    before = row_text(task.pk)
    answer = machine.client.generic(
        "POST",
        f"/api/daemon/tasks/{task.pk}/complete",
        b"",
        headers={"authorization": f"Bearer {machine.secret}", "transfer-encoding": "chunked"},
    )
    assert (answer.status_code, answer.json()["field"]) == (400, "Content-Length")
    assert row_text(task.pk) == before


def test_messages_are_stored_once_for_each_number_in_any_state_and_never_touch_the_row(machine: Machine) -> None:
    """V-11, V-12, V-13, V-14, T-06: repeats are ignored, order is by number, the queue row keeps its version."""
    task, token = started(machine)
    kinds = ["text", "thinking", "tool_use", "tool_result", "status", "error", "log"]
    batch = [{"seq": n, "type": kind, "content": kind} for n, kind in enumerate(kinds, 1)]
    before = row_text(task.pk)
    assert machine.post(f"tasks/{task.pk}/messages", {**token, "messages": batch[3:]}).json() == {"stored": 4}
    twice = [*batch[:5], {"seq": 1, "type": "text", "content": "another"}]
    assert machine.post(f"tasks/{task.pk}/messages", {**token, "messages": twice}).json() == {"stored": 3}
    assert row_text(task.pk) == before
    rows = TaskMessage.objects.filter(task=task).order_by("seq")
    assert [(row.seq, row.type, row.content) for row in rows] == [(n, k, k) for n, k in enumerate(kinds, 1)]
    machine.post(f"tasks/{task.pk}/complete", {**token, "output": "x"})
    tail = {**token, "messages": [{"seq": 8, "type": "text", "content": "tail"}]}
    assert machine.post(f"tasks/{task.pk}/messages", tail).json() == {"stored": 1}


def test_usage_of_a_pair_is_replaced_and_kept_after_a_cancel(machine: Machine) -> None:
    """X-17, RP-07: the newest report of a provider and model counts; a cancelled run's usage is still taken."""
    task, token = started(machine)
    line = {"provider": "p", "model": "m", "input_tokens": 5, "cost_usd_ticks": 10**15}
    assert machine.post(f"tasks/{task.pk}/usage", {**token, "usage": [line]}).json() == {"stored": 1}
    machine.request("POST", f"/api/tasks/{task.pk}/cancel")
    assert fresh(task).status == "cancelled"
    more = [{**line, "input_tokens": 7}, {**line, "input_tokens": 2, "cost_usd_ticks": None}, {"input_tokens": -3}]
    assert machine.post(f"tasks/{task.pk}/usage", {**token, "usage": more}).json() == {"stored": 2}
    rows = {(row.provider, row.model): row for row in TaskUsage.objects.filter(task=task)}
    assert rows["p", "m"].input_tokens == 9
    assert rows["p", "m"].cost_usd_ticks == 10**15
    assert rows["", ""].input_tokens == 0


def test_progress_after_the_end_changes_nothing(machine: Machine) -> None:
    """V-16: the newest line is readable while the run is on and stays as it was afterwards."""
    task, token = started(machine)
    machine.post(f"tasks/{task.pk}/progress", {**token, "summary": "Launching", "step": 1, "total": 2})
    machine.post(f"tasks/{task.pk}/complete", {**token, "output": "x"})
    late = {**token, "summary": "Finishing", "step": 2, "total": 2}
    assert machine.post(f"tasks/{task.pk}/progress", late).json() == {"kept": False}
    kept = TaskProgress.objects.get(task=task)
    assert (kept.summary, kept.step, kept.total) == ("Launching", 1, 2)


def test_the_database_being_away_is_a_5xx_on_a_terminal_report(machine: Machine) -> None:
    """RP-05: what a repeat can cure answers 5xx, since a 4xx makes the daemon throw the result away."""
    task, token = started(machine)
    path = f"tasks/{task.pk}/complete"
    with _locked(task):
        answer = machine.post(path, {**token, "output": "x"})
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (503, "unavailable", "1")
    assert fresh(task).status == "running"
    assert machine.post(path, {**token, "output": "x"}).status_code == 200


@contextmanager
def _locked(task: AgentTask) -> Iterator[None]:
    """Another session holds the task's row for longer than this door waits."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '100ms'")
    with psycopg.connect(**parameters("test-holder")) as holder:
        holder.execute("SELECT 1 FROM agent_task_queue WHERE id = %s FOR UPDATE", [task.pk])
        yield
    connection.close()


def test_a_failure_of_ours_answers_500_without_its_text(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret of the server")

    monkeypatch.setattr("queue_app.services.register.register", broken)
    answer = machine.post("register", {})
    assert (answer.status_code, answer.json()) == (500, {"error": "internal error", "code": "internal"})


def test_a_deregistered_runtime_keeps_its_reason_and_its_tasks(machine: Machine) -> None:
    """Unknown and foreign ids are skipped; tasks in flight stay as they are."""
    task, _ = started(machine)
    other = Machine.make()
    before = row_text(task.pk)
    ids = [str(machine.runtime.pk), str(other.runtime.pk), "garbage", str(task.pk)]
    reason = {"code": "not_executable", "detail": "gone"}
    answer = machine.post("deregister", {"runtime_ids": ids, "offline_reasons": {ids[0]: reason, ids[1]: reason}})
    assert answer.json() == {"deregistered": [ids[0]]}
    machine.runtime.refresh_from_db()
    assert (machine.runtime.status, machine.runtime.metadata["offline_reason"]) == ("offline", reason)
    assert AgentRuntime.objects.get(pk=other.runtime.pk).status == "online"
    assert row_text(task.pk) == before
    # Once heard again it is back, and the reason is over.
    assert machine.post("heartbeat", {"runtime_id": ids[0]}).status_code == 200
    machine.runtime.refresh_from_db()
    assert (machine.runtime.status, "offline_reason" in machine.runtime.metadata) == ("online", False)
