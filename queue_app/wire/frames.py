"""Frames of the daemon socket: `{"type", "payload"}`, one JSON object a frame."""

from __future__ import annotations

from typing import Any

import msgspec

from daemon_client import protocol
from queue_app.wire.decode import convert, parse


class Frame(msgspec.Struct):
    """Any frame; `payload` is read by its type."""

    type: str = ""
    payload: dict[str, Any] = {}


class RpcRequest(msgspec.Struct):
    """`daemon:rpc_request`. `timeout_ms` is how long the daemon gives the server to answer."""

    request_id: str = ""
    method: str = ""
    body: dict[str, Any] = {}
    timeout_ms: int = protocol.CLAIM_TIMEOUT_MS


def read_frame(data: bytes) -> Frame:
    """A frame as it came; raises InvalidError."""
    return convert(parse(data), Frame)


def frame(kind: str, payload: dict[str, Any]) -> str:
    """A frame as it goes out."""
    return msgspec.json.encode({"type": kind, "payload": payload}).decode()


def rpc_response(request_id: str, status: int, body: dict[str, Any]) -> str:
    """The answer to one RPC. From 400 up the text of `body["error"]` also stands where daemons look for it."""
    payload: dict[str, Any] = {"request_id": request_id, "status": status, "body": body}
    if status >= 400:
        payload["error"] = str(body.get("error", ""))
    return frame(protocol.FRAME_RPC_RESPONSE, payload)
