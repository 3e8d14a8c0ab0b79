"""A machine's runtimes: they come, live, go, and ask what they left behind."""

from __future__ import annotations

from typing import Any

from queue_app.api.daemon.door import Call, get, post
from queue_app.errors import NotFoundError
from queue_app.services import access, deregister, heartbeat, recover_orphans, register, task_status
from queue_app.wire.daemon import Deregister, Empty, Heartbeat, Register


@post(Register)
def registered(call: Call[Register]) -> dict[str, Any]:
    """`POST /register`."""
    return register.register(call.caller, call.body, capabilities=call.capabilities)


@post(Deregister)
def deregistered(call: Call[Deregister]) -> dict[str, Any]:
    """`POST /deregister`: ids that are not the caller's are skipped."""
    gone = deregister.deregister(call.caller, call.body.runtime_ids, call.body.offline_reasons)
    return {"deregistered": [str(runtime_id) for runtime_id in gone]}


@post(Heartbeat)
def heard(call: Call[Heartbeat]) -> dict[str, Any]:
    """`POST /heartbeat`."""
    return heartbeat.heartbeat(call.caller, call.body)


@post(Empty)
def orphans(call: Call[Empty]) -> dict[str, int]:
    """`POST /runtimes/{rt}/recover-orphans`."""
    return recover_orphans.recover_orphans(call.caller, call.id("runtime_id"))


@get
def pending(call: Call[Empty]) -> list[dict[str, Any]]:
    """`GET /runtimes/{rt}/tasks/pending`: what waits for the runtime, in the order of a claim; at most 100."""
    return task_status.pending(call.caller, call.id("runtime_id"))


@post(Empty, report=True)
def requested_result(call: Call[Empty]) -> None:
    """Results of requests that a heartbeat carried. This server makes none, so each of them is unknown."""
    access.runtime_of(call.caller, call.id("runtime_id"))
    raise NotFoundError("request not found")
