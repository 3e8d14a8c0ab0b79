"""What the environment says, read in one place: settings and commands ask here and never parse variables themselves.

Precedence of the service addresses: `DATABASE_URL` and `REDIS_URL`, else the `run.json` of the stack that runs on this
machine, else nothing (the caller may start embedded services, see `multica.embedded`).
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from multica.embedded import runfile

CHECKOUT = Path(__file__).resolve().parent.parent

# Seconds, unless the name is in COUNTS or UNSCALED. Source of the numbers: docs/settings.md.
WINDOWS: dict[str, float] = {
    "CLAIM_RECOVERY_WINDOW": 90,
    "PREPARE_LEASE": 45,
    "DISPATCH_TIMEOUT": 300,
    "RUNTIME_FRESHNESS": 150,
    "RUNTIME_RECONNECT_GRACE": 10800,
    "RUNNING_BACKSTOP": 9000,
    "QUEUE_TTL": 86400,
    "EMPTY_CLAIM_TTL": 180,
    "EMPTY_VERSION_TTL": 86400,
    "STOP_PENDING_LIMIT": 300,
    "AGEING_STEP": 600,
    "SWEEP_INTERVAL": 30,
    "HEARTBEAT_FLUSH": 60,
    "HEARTBEAT_BATCH": 30,
    "HEARTBEAT_INTERVAL": 15,
    "TASK_TOKEN_TTL": 86400,
    "OMISSION_GAP": 15,
    "RETRY_OFFLINE_DEFERRAL": 1,
    "RETRY_NETWORK_WAIT": 5,
    "COMMENT_ESCALATION": 300,
}
# How long one call may take is a matter of the machine, not of the windows: the time scale leaves it alone.
UNSCALED: dict[str, float] = {"REDIS_TIMEOUT": 0.25}
COUNTS: dict[str, int] = {"MAX_DELIVERIES": 5, "CLAIM_BATCH_CAP": 32}
SWITCHES: dict[str, bool] = {"DAEMON_SOCKET": True}

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})


class BadSetting(ValueError):
    """A variable holds something that cannot be used; the text names the variable and what it should hold."""


def text(name: str, default: str = "") -> str:
    return os.environ.get(name, "").strip() or default


def flag(name: str, default: bool = False) -> bool:
    value = text(name).lower()
    return value in TRUE_WORDS if value else default


def words(name: str) -> list[str]:
    """A comma-separated variable as a list without empty items."""
    return [item.strip() for item in text(name).split(",") if item.strip()]


def number(name: str, default: float, *, positive: bool = True) -> float:
    raw = text(name)
    if not raw:
        return default
    try:
        value = float(raw)
    except ValueError:
        raise BadSetting(f"{name} must be a number, not {raw!r}") from None
    if value != value or value in (float("inf"), float("-inf")) or (positive and value <= 0):
        raise BadSetting(f"{name} must be a number above 0, not {raw!r}")
    return value


def count(name: str, default: int) -> int:
    value = number(name, default)
    if value != int(value):
        raise BadSetting(f"{name} must be a whole number, not {value}")
    return int(value)


def time_scale() -> float:
    """`MULTICA_TIME_SCALE`, by which every window is multiplied; the daemon reads the same variable."""
    return number("MULTICA_TIME_SCALE", 1.0)


def windows() -> dict[str, Any]:
    """Every window in seconds after overrides (`MULTICA_<NAME>`) and the time scale, the counts and the switches."""
    scale = time_scale()
    values: dict[str, Any] = {"TIME_SCALE": scale}
    for name, default in WINDOWS.items():
        values[name] = number(f"MULTICA_{name}", default) * scale
    for name, default in UNSCALED.items():
        values[name] = number(f"MULTICA_{name}", default)
    for name, whole in COUNTS.items():
        values[name] = count(f"MULTICA_{name}", whole)
    for name, on in SWITCHES.items():
        values[name] = flag(f"MULTICA_{name}", on)
    return values


def state_dir() -> Path:
    """Where this stack keeps its data, sockets, logs and `run.json`; one directory is one stack."""
    return Path(text("MULTICA_STATE_DIR", str(CHECKOUT / ".state"))).expanduser().absolute()


def role() -> str:
    """Which door this process is: web, ws, sweeper, worker or command. Names the database session and its timeouts."""
    given = text("MULTICA_ROLE")
    if given:
        return given
    line = " ".join(sys.argv[:3])
    for sign, name in (("runsweeper", "sweeper"), ("celery", "worker"), ("uvicorn", "web"), ("serve", "web")):
        if sign in line:
            return name
    return "command"


def database_url() -> str:
    """Address of PostgreSQL in libpq's URL form, or '' when nothing is configured and no stack runs."""
    return text("DATABASE_URL") or runfile.service_url(state_dir(), "database_url")


def redis_url() -> str:
    """Address of Redis or Valkey (`redis://`, `rediss://`, `unix://`), or '' when there is none."""
    return text("REDIS_URL") or runfile.service_url(state_dir(), "redis_url")


def celery_broker(url: str) -> str:
    """The same server in the spelling of Celery, which has its own for unix sockets. '' gives an in-process broker."""
    if not url:
        return "memory://"
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    query = dict(item.split("=", 1) for item in parts.query.split("&") if "=" in item)
    return f"redis+socket://{parts.path}?virtual_host={query.get('db', '0')}"


def secret_key() -> str:
    """`MULTICA_SECRET_KEY`, else a key made once and kept in the state directory (0600) for all its processes."""
    given = text("MULTICA_SECRET_KEY")
    if given:
        return given
    path = state_dir() / "secret_key"
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        return _create_secret(path)


def _create_secret(path: Path) -> str:
    # Linked into place whole: a second process starting at the same moment reads one complete key, never half of one.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix="secret_key.", dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="ascii") as handle:
        handle.write(secrets.token_urlsafe(48))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)
    return path.read_text(encoding="ascii")
