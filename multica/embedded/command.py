"""Gives one `manage.py` command the services it needs: the running stack's, the operator's, or its own for a while."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from multica import env
from multica.embedded import runfile
from multica.embedded.errors import EmbeddedError

# They run the services themselves, or need none.
WITHOUT = frozenset(
    {
        *("up", "demo", "help", "version", "check", "collectstatic", "findstatic", "diffsettings"),
        *("startapp", "startproject", "spectacular", "--version", "--help", "-h"),
    }
)
# How long a command waits for another one that owns the services for its own duration.
WAIT_SECONDS = 60.0


@contextmanager
def services_for(argv: list[str]) -> Iterator[None]:
    """Around the command: afterwards nothing that it started is left. Prints the refusal and exits 1 when it cannot."""
    if not needs_services(argv):
        yield
        return
    from multica.embedded.services import Services

    needed = missing()
    if not any(needed):
        yield
        return
    try:
        services = Services(env.state_dir(), postgres=needed[0], valkey=needed[1], wait=WAIT_SECONDS)
        with services:
            os.environ.update(services.addresses())
            yield
    except EmbeddedError as error:
        sys.exit(f"multica: {error}")


def needs_services(argv: list[str]) -> bool:
    command = argv[1] if len(argv) > 1 else "help"
    return command not in WITHOUT and not {"-h", "--help"} & set(argv[2:])


def missing() -> tuple[bool, bool]:
    """Which of PostgreSQL and Valkey this process has no address for."""
    running = runfile.read(env.state_dir())
    if running is None:
        return not env.text("DATABASE_URL"), not env.text("REDIS_URL")
    # A stack on the operator's own database: an embedded one started beside it would be a second, empty truth.
    for variable, key in (("DATABASE_URL", "database_url"), ("REDIS_URL", "redis_url")):
        if not running.get(key) and not env.text(variable):
            sys.exit(f"multica: the running stack uses a {variable} from its environment; set the same one here")
    return False, False
