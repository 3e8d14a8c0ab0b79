"""The empty verdict: cached, versioned knowledge that a runtime has no queued row at all.

    version   counts the acts that could make work; bumped after their commit and before the wake-up
    verdict   "empty", stamped with the version that was read *before* the look

A verdict counts only while its version is the present one, so an enqueue between look and verdict costs one look more,
never a lost task. Without Redis, or when it is slow, every question is a miss. Only emptiness is ever kept.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queue_app import redis
from queue_app.conf import conf

_NONE = "0"
_OWED_MOST: Final = 20_000
_OWED_AT_ONCE: Final = 512


@dataclass(frozen=True)
class Verdict:
    """What was found empty, for whom: a caller with another daemon or workspace is not answered by it."""

    workspace_id: str
    daemon_id: str


@dataclass(frozen=True)
class Known:
    """What the cache says of one runtime: its version, and the verdict if there is a present one.

    `version` is None when nothing could be read, so nothing may be stored.
    """

    version: str | None = None
    verdict: Verdict | None = None


def empty_key(runtime_id: str) -> str:
    """Where a verdict lives."""
    return f"mul:claim:runtime:empty:{runtime_id}"


def version_key(runtime_id: str) -> str:
    """Where a version lives."""
    return f"mul:claim:runtime:version:{runtime_id}"


class _Owed:
    """Bumps that Redis did not take. They go first with the next call that gets through, and until then their runtimes
    have no verdict here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: set[str] = set()

    def add(self, ids: Iterable[str]) -> None:
        with self._lock:
            self._ids.update(ids)
            while len(self._ids) > _OWED_MOST:
                self._ids.pop()

    def take(self) -> list[str]:
        with self._lock:
            ids = list(itertools.islice(self._ids, _OWED_AT_ONCE))
            self._ids.difference_update(ids)
            return ids

    def __contains__(self, runtime_id: str) -> bool:
        with self._lock:
            return runtime_id in self._ids


_owed = _Owed()


def bump(runtime_ids: Iterable[str]) -> None:
    """Make every verdict about these runtimes stale. After the commit, before any wake-up.

    A bump that Redis does not take is owed and sent with the next call; a verdict outlives a lost one by its own
    lifetime at most.
    """
    ids = list(dict.fromkeys(runtime_ids))
    if not ids or not redis.configured():
        return
    _owed.add(ids)
    _pay(lambda pipe: None)


def _pay(commands: Callable[[Any], None]) -> list[Any] | None:
    """Send the owed bumps and then `commands` in one round trip; the answers of `commands`."""
    owed = _owed.take()
    ttl = max(1, int(conf.EMPTY_VERSION_TTL))

    def send(pipe: Any) -> None:
        for runtime_id in owed:
            pipe.incr(version_key(runtime_id))
            pipe.expire(version_key(runtime_id), ttl)
        commands(pipe)

    answers = redis.pipeline(send)
    if answers is None:
        _owed.add(owed)
        return None
    return answers[2 * len(owed) :]


def read(runtime_ids: Iterable[str]) -> dict[str, Known]:
    """What is known of each runtime, in one round trip; reading keeps a version alive for another 24 h.

    Take the versions from here *before* looking into the database and hand them to `store`.
    """
    ids = list(dict.fromkeys(runtime_ids))
    if not ids or not redis.configured():
        return {runtime_id: Known() for runtime_id in ids}
    ttl = max(1, int(conf.EMPTY_VERSION_TTL))

    def ask(pipe: Any) -> None:
        pipe.mget([empty_key(i) for i in ids] + [version_key(i) for i in ids])
        for runtime_id in ids:
            pipe.expire(version_key(runtime_id), ttl)

    answers = _pay(ask)
    if answers is None:
        return {runtime_id: Known() for runtime_id in ids}
    verdicts, versions = answers[0][: len(ids)], answers[0][len(ids) :]
    return {i: _known(i, verdict, version) for i, verdict, version in zip(ids, verdicts, versions, strict=True)}


def _known(runtime_id: str, stored: str | None, version: str | None) -> Known:
    version = version or _NONE
    if stored is None or runtime_id in _owed:
        return Known(version)
    seen, _, rest = stored.partition("|")
    workspace_id, separator, daemon_id = rest.partition("|")
    if seen != version or not separator:
        return Known(version)
    return Known(version, Verdict(workspace_id, daemon_id))


def store(found: Mapping[str, tuple[str | None, Verdict, float]]) -> None:
    """Keep that runtimes were found empty: id to (version read before the look, verdict, seconds it may live)."""
    keep = {
        runtime_id: (f"{version}|{verdict.workspace_id}|{verdict.daemon_id}", int(lives * 1000))
        for runtime_id, (version, verdict, lives) in found.items()
        if version is not None and lives * 1000 >= 1 and runtime_id not in _owed
    }
    if not keep or not redis.configured():
        return

    def put(pipe: Any) -> None:
        for runtime_id, (value, milliseconds) in keep.items():
            pipe.set(empty_key(runtime_id), value, px=milliseconds)

    _pay(put)
