"""The claim door's own connections to the database: a small pool under the name `multica-claim`.

Claims wait for nobody else's connections and nobody waits for theirs, their timeouts fit their short budget, and what
they cost can be read off `pg_stat_activity` by name. Connections commit each statement by itself.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import psycopg
from django.db import connections
from psycopg.types.json import set_json_loads
from psycopg_pool import ConnectionPool

NAME: Final = "multica-claim"
SIZE: Final = 16
TIMEOUTS: Final = "-c statement_timeout=3500 -c lock_timeout=1500 -c idle_in_transaction_session_timeout=3000"
"""Milliseconds. All end before the 5 s after which a daemon gives a claim up."""

_NOT_LIBPQ = ("context", "cursor_factory", "prepare_threshold", "pool", "server_side_binding")


def parameters(name: str) -> dict[str, Any]:
    """libpq's parameters of the default database under another application name."""
    params = connections["default"].get_connection_params()
    for key in _NOT_LIBPQ:
        params.pop(key, None)
    options = f"{params.get('options') or ''} {TIMEOUTS} -c timezone=UTC".strip()
    return {**params, "application_name": name, "options": options}


def _alive(connection: psycopg.Connection[Any]) -> None:
    """Refuse a connection on which the server has said something, which to an idle one can only be its end.

    Costs no round trip, so that a claim stays at one.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        # Closed here, because libpq has not read the end yet: the pool would take it for sound, keep it and offer it
        # again until the caller's time is up, for ever after a restart of the database.
        connection.close()
        raise psycopg.OperationalError("the server has closed this connection")


def _configure(connection: psycopg.Connection[Any]) -> None:
    set_json_loads(msgspec.json.decode, connection)


_lock = threading.Lock()
_pool: tuple[tuple[int, str], ConnectionPool] | None = None


def _current() -> ConnectionPool:
    """The pool of this process and database; a fork or another test database gets its own."""
    global _pool
    settings = connections["default"].settings_dict
    key = (os.getpid(), f"{settings['HOST']}:{settings['PORT']}/{settings['NAME']}")
    pool = _pool
    if pool is not None and pool[0] == key:
        return pool[1]
    with _lock:
        if _pool is None or _pool[0] != key:
            if _pool is not None and _pool[0][0] == key[0]:
                _pool[1].close()
            made = ConnectionPool(
                kwargs={**parameters(NAME), "autocommit": True},
                min_size=0,
                max_size=SIZE,
                max_idle=600,
                open=True,
                check=_alive,
                configure=_configure,
                name=NAME,
            )
            _pool = (key, made)
        return _pool[1]


@contextmanager
def connection(timeout: float) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the door, waited for at most `timeout` seconds (psycopg_pool.PoolTimeout then)."""
    with _current().connection(timeout=timeout) as borrowed:
        yield borrowed


def close() -> None:
    """Give all connections back to the server; the next claim opens new ones."""
    global _pool
    with _lock:
        pool, _pool = _pool, None
    if pool is not None and pool[0][0] == os.getpid():
        pool[1].close()


atexit.register(close)
