"""The daemon's own token."""

from __future__ import annotations

from typing import Any

from queue_app.api.daemon.door import Call, post
from queue_app.services import tokens
from queue_app.wire.daemon import Empty


@post(Empty)
def renew(call: Call[Empty]) -> dict[str, Any]:
    """`POST /api/tokens/current/renew`: the secret stays, its end moves. A token without end has the end `""`."""
    renewal = tokens.renew(call.caller)
    return {"expires_at": renewal.expires_at or "", "renewed": renewal.renewed}
