"""The workspaces of a daemon's user, and what a machine needs to know of each."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from django.http import HttpResponse

from queue_app.api.daemon.door import Call, get
from queue_app.services import workspaces
from queue_app.wire.daemon import Empty


@get
def listed(call: Call[Empty]) -> HttpResponse:
    """`GET /workspaces`: a bare array, with an ETag that a daemon gives back to be told "unchanged"."""
    rows = [{"id": str(row.pk), "name": row.name} for row in workspaces.mine(call.caller)]
    body = msgspec.json.encode(rows)
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    known = {tag.strip().removeprefix("W/") for tag in call.request.headers.get("If-None-Match", "").split(",")}
    if etag in known:
        return HttpResponse(status=304, headers={"ETag": etag})
    return HttpResponse(body, content_type="application/json", headers={"ETag": etag})


@get
def repos(call: Call[Empty]) -> dict[str, Any]:
    """`GET /workspaces/{ws}/repos`, asked before every checkout."""
    return workspaces.repos(call.caller, call.id("workspace_id"))


@get
def runtime_profiles(call: Call[Empty]) -> dict[str, Any]:
    """`GET /workspaces/{ws}/runtime-profiles`: the enabled ones."""
    return workspaces.runtime_profiles(call.caller, call.id("workspace_id"))
