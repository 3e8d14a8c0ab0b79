"""Whether local directories may be deleted. Kinds that this server does not have answer 501: a 404 would delete."""

from __future__ import annotations

from typing import Any

from queue_app.api.daemon.door import LARGE, Call, get, post
from queue_app.services import gc_check
from queue_app.wire.daemon import Empty, IssueCheck


@post(IssueCheck, limit=LARGE)
def issues(call: Call[IssueCheck]) -> dict[str, Any]:
    """`POST /workspaces/{ws}/issues/gc-check`."""
    return {"issues": gc_check.issues(call.caller, call.id("workspace_id"), call.body.issue_ids)}


@get
def issue(call: Call[Empty]) -> dict[str, Any]:
    """`GET /issues/{id}/gc-check`."""
    return gc_check.issue(call.caller, call.id("issue_id"))


@get
def task(call: Call[Empty]) -> dict[str, Any]:
    """`GET /tasks/{task}/gc-check`."""
    return gc_check.task(call.caller, call.id("task_id"))
