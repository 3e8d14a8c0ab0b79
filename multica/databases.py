"""Django's DATABASES entry from one libpq address, with the timeouts of the process that asks."""

from __future__ import annotations

from typing import Any

from django.db import connections
from psycopg.conninfo import conninfo_to_dict

from multica import env

# milliseconds: statement, lock, idle inside a transaction. Bounded waiting at every door; a command run by a person
# (migrate, dbshell) may take as long as it takes, but never sits on locks while it does nothing.
TIMEOUTS: dict[str, tuple[int, int, int]] = {
    "web": (15_000, 3_000, 10_000),
    "ws": (15_000, 3_000, 10_000),
    "sweeper": (60_000, 3_000, 20_000),
    "worker": (120_000, 5_000, 60_000),
    "command": (0, 30_000, 300_000),
}
DJANGO_KEYS = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}


def server_options(role: str) -> str:
    """The `options` connection parameter that sets the timeouts of this role in the server."""
    statement, lock, idle = TIMEOUTS.get(role, TIMEOUTS["command"])
    values = {
        "statement_timeout": statement,
        "lock_timeout": lock,
        "idle_in_transaction_session_timeout": idle,
        "timezone": "UTC",
    }
    return " ".join(f"-c {name}={value}" for name, value in values.items())


def database(url: str, role: str) -> dict[str, Any]:
    """One DATABASES entry. An empty address gives one that fails on first use: not every command needs a database."""
    given = conninfo_to_dict(url) if url else {"dbname": "multica", "host": "/nonexistent/multica"}
    entry: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "",
        # HTTP runs in threads that live as long as the process: their connections stay, and are probed before reuse.
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
    }
    options: dict[str, Any] = {"application_name": f"multica-{role}", "connect_timeout": 5}
    for key, value in given.items():
        if key in DJANGO_KEYS:
            entry[DJANGO_KEYS[key]] = str(value)
        else:
            options[key] = value
    options["options"] = " ".join(filter(None, [server_options(role), str(given.get("options") or "")]))
    entry["OPTIONS"] = options
    return entry


def point_at(url: str) -> None:
    """Gives this process's default connection another address; for `up`, which learns it after Django was set up."""
    connections["default"].settings_dict.update(database(url, env.role()))
