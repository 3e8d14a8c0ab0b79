"""One delivered task: prepared, parked, started, watched, reported and ended."""

from __future__ import annotations

from typing import Any

import msgspec

from queue_app.api.daemon.door import LARGE, REPORT, Call, get, post
from queue_app.domain.states import PREPARING
from queue_app.errors import ConflictError, NotFoundError
from queue_app.models import AgentTask
from queue_app.services import (
    access,
    append_messages,
    complete,
    confirm_stop,
    fail,
    park,
    pin_session,
    renew_lease,
    report_progress,
    report_usage,
    start,
    task_status,
)
from queue_app.services.end_report import report_of
from queue_app.wire.daemon import (
    CancelAck,
    Complete,
    Empty,
    Fail,
    Fenced,
    Messages,
    Progress,
    Session,
    SkillRefs,
    Usage,
    Wait,
    text_of,
    token_of,
)


def _state(task: AgentTask) -> dict[str, Any]:
    return {"id": str(task.pk), "status": task.status}


@post(Fenced)
def prepare_lease(call: Call[Fenced]) -> dict[str, Any]:
    """`POST /runtimes/{rt}/tasks/{task}/prepare-lease`."""
    task = renew_lease.renew_lease(call.caller, call.id("runtime_id"), call.id("task_id"), claim_token=call.body.token)
    return {**_state(task), "prepare_lease_expires_at": task.prepare_lease_expires_at}


@post(SkillRefs)
def skill_bundles(call: Call[SkillRefs]) -> None:
    """`POST /runtimes/{rt}/tasks/{task}/skill-bundles/resolve`. Claims carry whole skills, so no ref is known here."""
    task = access.task_of(call.caller, call.id("task_id"))
    if task.runtime_id != call.id("runtime_id"):
        raise NotFoundError(access.OUT_OF_REACH)
    if task.status not in PREPARING:
        raise ConflictError(f"the task is {task.status}, not in preparation")
    raise NotFoundError("skill not found")


@post(Wait)
def wait_local_directory(call: Call[Wait]) -> dict[str, Any]:
    """`POST /tasks/{task}/wait-local-directory`."""
    return _state(park.park(call.caller, call.id("task_id"), claim_token=call.body.token, reason=call.body.reason))


@post(Fenced)
def started(call: Call[Fenced]) -> dict[str, Any]:
    """`POST /tasks/{task}/start`."""
    task = start.start(call.caller, call.id("task_id"), claim_token=call.body.token)
    return {**_state(task), "started_at": task.started_at}


@get
def status(call: Call[Empty]) -> dict[str, str]:
    """`GET /tasks/{task}/status?claim_token=…`."""
    token = token_of(call.request.GET.get("claim_token"))
    return {"status": task_status.task_status(call.caller, call.id("task_id"), claim_token=token)}


@post(Progress)
def progress(call: Call[Progress]) -> dict[str, bool]:
    """`POST /tasks/{task}/progress`."""
    body = call.body
    kept = report_progress.report_progress(
        call.caller,
        call.id("task_id"),
        claim_token=body.token,
        summary=body.summary,
        step=body.step,
        total=body.total,
    )
    return {"kept": kept}


@post(Messages, limit=LARGE)
def messages(call: Call[Messages]) -> dict[str, int]:
    """`POST /tasks/{task}/messages`: in any state, each (task, seq) once."""
    new = append_messages.append_messages(
        call.caller, call.id("task_id"), claim_token=call.body.token, messages=call.body.messages
    )
    return {"stored": new}


@post(Session)
def session(call: Call[Session]) -> dict[str, Any]:
    """`POST /tasks/{task}/session`."""
    body = call.body
    return _state(
        pin_session.pin_session(
            call.caller,
            call.id("task_id"),
            claim_token=body.token,
            session_id=body.session_id,
            work_dir=body.work_dir,
        )
    )


@post(Usage)
def usage(call: Call[Usage]) -> dict[str, int]:
    """`POST /tasks/{task}/usage`."""
    body = call.body
    kept = report_usage.report_usage(call.caller, call.id("task_id"), claim_token=body.token, usage=body.usage)
    return {"stored": kept}


@post(Complete, limit=REPORT, report=True)
def completed(call: Call[Complete]) -> dict[str, Any]:
    """`POST /tasks/{task}/complete`."""
    body = call.body
    said = {**msgspec.to_builtins(body), "output": text_of(body.output)}
    result = {name: value for name, value in said.items() if name == "output" or (value and name != "claim_token")}
    return _state(
        complete.complete(
            call.caller, call.id("task_id"), claim_token=body.token, result=result, report=report_of(body)
        )
    )


@post(Fail, limit=REPORT, report=True)
def failed(call: Call[Fail]) -> dict[str, Any]:
    """`POST /tasks/{task}/fail`."""
    body = call.body
    return _state(
        fail.fail(
            call.caller,
            call.id("task_id"),
            claim_token=body.token,
            error=text_of(body.error),
            failure_reason=body.failure_reason or None,
            report=report_of(body),
        )
    )


@post(CancelAck, report=True)
def cancel_ack(call: Call[CancelAck]) -> dict[str, Any]:
    """`POST /tasks/{task}/cancel-ack`."""
    body = call.body
    return _state(
        confirm_stop.confirm_stop(
            call.caller,
            call.id("task_id"),
            claim_token=body.token,
            branch_name=body.branch_name,
            durable_work_dir=body.durable_work_dir,
            error=body.error_message,
            failure_reason=body.failure_reason,
        )
    )
