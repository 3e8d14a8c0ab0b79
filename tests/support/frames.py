"""WebSocket frames in a byte stream (RFC 6455, section 5.2), as an observer needs them."""

from __future__ import annotations

import struct

TEXT, BINARY, CONTINUATION = 1, 2, 0


class FrameReader:
    """Cuts a stream into whole frames and reads their text, masked or not. Bytes of an unfinished frame are kept."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, str]]:
        """The frames that are complete now, each as (its raw bytes, its text); control frames have the text ''."""
        self._pending += data
        frames = []
        while (size := self._size()) and len(self._pending) >= size:
            raw = bytes(self._pending[:size])
            del self._pending[:size]
            frames.append((raw, _text(raw)))
        return frames

    def _size(self) -> int:
        """Length of the first frame with its header; 0 while even the header is incomplete."""
        if len(self._pending) < 2:
            return 0
        start, length = _header(self._pending)
        return start + length if len(self._pending) >= start else 0


def _header(data: bytes | bytearray) -> tuple[int, int]:
    """(offset of the payload, length of the payload); the length is 0 while its bytes are missing."""
    short = data[1] & 0x7F
    extra = {126: 2, 127: 8}.get(short, 0)
    start = 2 + extra + (4 if data[1] & 0x80 else 0)
    if len(data) < start or not extra:
        return start, short if not extra else 0
    return start, struct.unpack(">H" if extra == 2 else ">Q", data[2 : 2 + extra])[0]


def _text(raw: bytes) -> str:
    start, length = _header(raw)
    if raw[0] & 0x0F not in (TEXT, BINARY, CONTINUATION):
        return ""
    payload = raw[start : start + length]
    if raw[1] & 0x80:
        mask = raw[start - 4 : start]
        whole = (mask * (length // 4 + 1))[:length]
        payload = (int.from_bytes(payload, "big") ^ int.from_bytes(whole, "big")).to_bytes(length, "big")
    return payload.decode("utf-8", "replace")
