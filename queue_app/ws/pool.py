"""Services on behalf of sockets: a few threads of their own, each with a database connection that it keeps.

Services are synchronous. The one thread-sensitive executor of asgiref would do them one after another for all sockets
of the process; here they run side by side, at most as many as there are threads.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import close_old_connections, connections

from queue_app.errors import UnavailableError

T = TypeVar("T")

APPLICATION_NAME = "multica-ws"
THREADS = int(os.environ.get("MULTICA_WS_THREADS") or 8)


def _own_connection() -> None:
    # Only this thread's wrapper gets the name; the settings themselves are shared with the HTTP door.
    wrapper = connections["default"]
    wrapper.settings_dict = copy.deepcopy(wrapper.settings_dict)
    wrapper.settings_dict.setdefault("OPTIONS", {})["application_name"] = APPLICATION_NAME


class Pool:
    """Runs synchronous functions for coroutines."""

    def __init__(self, threads: int = THREADS) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="ws", initializer=_own_connection)

    async def call(self, action: Callable[[], T], *, within: float | None = None) -> T:
        """The result of `action`, run in a thread.

        With `within` (seconds), raises UnavailableError when no thread took it up in that time; it will then never
        run. An action that was taken up is waited for, however long it takes: it knows its own limit.
        """
        job = self._executor.submit(_run, action)
        waiting = asyncio.wrap_future(job)
        if within is not None:
            await asyncio.wait({waiting}, timeout=max(0.0, within))
            if not waiting.done() and job.cancel():
                raise UnavailableError("the server is busy")
        return await asyncio.shield(waiting)

    def close(self) -> None:
        """End the threads and their connections (tests)."""
        for _ in range(self._executor._max_workers):
            self._executor.submit(connections.close_all)
        self._executor.shutdown()


def _run(action: Callable[[], T]) -> T:
    close_old_connections()
    try:
        return action()
    finally:
        close_old_connections()


POOL = Pool()
"""The pool of this process; its threads start with the first call."""
