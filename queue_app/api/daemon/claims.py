"""Claiming over HTTP: the batch, and one runtime at a time for daemons that know no other way."""

from __future__ import annotations

from typing import Any

from queue_app.api.daemon.door import Call, post
from queue_app.services import claim
from queue_app.wire.daemon import Claim, Empty


@post(Claim)
def batch(call: Call[Claim]) -> dict[str, Any]:
    """`POST /tasks/claim`. Never 404: that would make a daemon give up batches."""
    body = call.body
    tasks = claim.claim(
        call.caller, daemon_id=body.daemon_id, runtime_ids=body.runtime_ids, max_tasks=body.max_tasks, door="http"
    )
    return {"tasks": tasks}


@post(Empty)
def one(call: Call[Empty]) -> dict[str, Any]:
    """`POST /runtimes/{rt}/tasks/claim`."""
    return {"task": claim.claim_for_runtime(call.caller, call.ids["runtime_id"])}
