"""The database of an end-to-end site: migrated once a run, copied for each site, with accounts in it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

CHECKOUT = Path(__file__).resolve().parents[2]
ACCOUNTS = 24
_TEMPLATE_LOCK = 4_107_221


def manage(*arguments: str) -> list[str]:
    return [sys.executable, str(CHECKOUT / "manage.py"), *arguments]


# One process for both, because starting one costs more than the work.
_PREPARE = """
import hashlib
from django.core.management import call_command
call_command("migrate", verbosity=0)
from queue_app import auth
from queue_app.models import Member, PersonalAccessToken, User, Workspace
for number in range({count}):
    user = User.objects.create(username=f"person-{{number}}", email=f"person-{{number}}@example.test")
    workspace = Workspace.objects.create(name=f"Workspace {{number}}", slug=f"workspace-{{number}}")
    Member.objects.create(workspace=workspace, user=user, role="owner")
    secret = "mul_" + hashlib.sha1(f"{secret}-{{number}}".encode()).hexdigest()
    PersonalAccessToken.objects.create(
        token_hash=auth.hash_of(secret), token_prefix=secret[:12], user=user, name="test"
    )
"""
_SECRET = "end-to-end"


def prepare_database(env: Mapping[str, str]) -> None:
    """Migrate and make the accounts; their tokens are derived, so every process of the run can compute them."""
    script = _PREPARE.format(count=ACCOUNTS, secret=_SECRET)
    run_command(env, "shell", "--verbosity", "0", "--command", script)


def run_command(env: Mapping[str, str], *arguments: str) -> str:
    """Run a management command to its end; its output. AssertionError when it fails."""
    done = subprocess.run(
        manage(*arguments), env=dict(env), cwd=CHECKOUT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, f"{arguments[:2]}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def token_of(number: str) -> str:
    """The personal token of account `number`."""
    return "mul_" + hashlib.sha1(f"{_SECRET}-{number}".encode()).hexdigest()


@contextlib.contextmanager
def private_database() -> Iterator[str]:
    """The URL of a fresh, migrated database on the server of this test run; dropped at the end."""
    base = os.environ["DATABASE_URL"]
    run = os.environ["MULTICA_TEST_RUN"].lower()
    template = f"e2e_template_{run}"
    name = f"e2e_{run}_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(base, autocommit=True) as connection:
        _ensure_template(connection, base, template)
        connection.execute("SELECT pg_advisory_lock_shared(%s)", [_TEMPLATE_LOCK])
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        try:
            yield _with_name(base, name)
        finally:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            connection.execute("SELECT pg_advisory_unlock_shared(%s)", [_TEMPLATE_LOCK])
            row = connection.execute("SELECT pg_try_advisory_lock(%s)", [_TEMPLATE_LOCK]).fetchone()
            if row and row[0]:  # nobody else needs it
                connection.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(template)))
                connection.execute("SELECT pg_advisory_unlock(%s)", [_TEMPLATE_LOCK])


class _Numbers:
    """Numbers that differ in every use, from any thread."""

    def __init__(self) -> None:
        self._last, self._lock = 0, threading.Lock()

    def __next__(self) -> int:
        with self._lock:
            self._last += 1
            return self._last


_numbers = _Numbers()


def _ensure_template(connection: psycopg.Connection[Any], base: str, template: str) -> None:
    """Migrate once per run, by whichever worker comes first; the others wait for it."""
    connection.execute("SELECT pg_advisory_lock(%s)", [_TEMPLATE_LOCK + 1])
    try:
        known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [template]).fetchone()
        if known:
            return
        draft = f"{template}_draft"
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(draft)))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(draft)))
        prepare_database({**os.environ, "DATABASE_URL": _with_name(base, draft), "MULTICA_ROLE": "command"})
        connection.execute(
            sql.SQL("ALTER DATABASE {} RENAME TO {}").format(sql.Identifier(draft), sql.Identifier(template))
        )
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", [_TEMPLATE_LOCK + 1])


def _with_name(url: str, name: str) -> str:
    """The same server with another database, whatever form the address has."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    user, host, port = given.get("user") or "", str(given.get("host") or ""), given.get("port")
    password = f":{given['password']}" if given.get("password") else ""
    if host.startswith("/"):
        return f"postgresql://{user}{password}@/{name}?host={quote(host, safe='')}" + (f"&port={port}" if port else "")
    return f"postgresql://{user}{password}@{host}:{port or 5432}/{name}"
