"""Settings of the daemon and the command line: one config file a profile, environment over file over default.

The file is `~/.multica/config.json` (`~/.multica/profiles/NAME/config.json` for a named profile; inside a task
`$MULTICA_TASK_CONFIG_ROOT/config.json`). `MULTICA_HOME` replaces `~/.multica`. Durations are written like `15s`,
`1h30m` or `14d` and are seconds here.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from daemon_client import __version__, protocol
from daemon_client.errors import ConfigError

DEFAULT_SERVER_URL: Final = "ws://localhost:8080/ws"
DEFAULT_GC_ARTIFACTS: Final = ("node_modules", ".next", ".turbo")

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d)")


def parse_duration(text: str) -> float:
    """Seconds from `1h30m`, `500ms`, `14d` or `0`; anything else is a ConfigError. Never negative."""
    value = text.strip()
    if value == "0":
        return 0.0
    parts = _DURATION_PART.findall(value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ConfigError(f"{text!r} is not a duration; write it like 15s, 1h30m or 14d")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def parse_bool(text: str, default: bool) -> bool:
    value = text.strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    return False if value in ("0", "false", "no", "off") else default


def normalise_server_url(url: str) -> str:
    """The http(s) base of a server URL: ws becomes http, a path of exactly `/ws`, query and fragment are dropped."""
    parts = urlsplit(url.strip())
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"{url!r} is not a server URL; write it like http://localhost:8080")
    path = parts.path.rstrip("/")
    return urlunsplit((scheme, parts.netloc, "" if path == "/ws" else path, "", ""))


# --- files -------------------------------------------------------------------------------------------------------


def home_dir(environ: Mapping[str, str]) -> Path:
    if chosen := environ.get("MULTICA_HOME"):
        return Path(chosen)
    return Path(environ["HOME"] if environ.get("HOME") else Path.home()) / ".multica"


def profile_dir(environ: Mapping[str, str], profile: str = "") -> Path:
    """Where config, pid file and logs of a profile live; in a task, the task's private directory."""
    if root := environ.get("MULTICA_TASK_CONFIG_ROOT"):
        if not Path(root).is_absolute():
            raise ConfigError("MULTICA_TASK_CONFIG_ROOT must be an absolute path")
        return Path(root)
    if not profile:
        return home_dir(environ)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", profile):
        raise ConfigError(f"{profile!r} is not a profile name; use letters, digits, dot, dash and underscore")
    return home_dir(environ) / "profiles" / profile


def write_private(path: Path, data: bytes) -> None:
    """Replace a file in one step, mode 0600: a reader sees the old content or the new, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class ConfigFile:
    """The JSON config of one profile. Unknown keys survive a save."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path, self.values = path, values

    @classmethod
    def load(cls, environ: Mapping[str, str], profile: str = "") -> ConfigFile:
        path = profile_dir(environ, profile) / "config.json"
        try:
            values = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return cls(path, {})
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path} must hold a JSON object")
        return cls(path, values)

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else "" if value is None else json.dumps(value)

    def save(self) -> None:
        write_private(self.path, json.dumps(self.values, indent=2, sort_keys=True).encode() + b"\n")


def ensure_daemon_id(environ: Mapping[str, str]) -> str:
    """The identity of this machine, made on first use and shared by all profiles."""
    if pinned := environ.get("MULTICA_DAEMON_ID", "").strip():
        return pinned
    path = home_dir(environ) / "daemon.id"
    try:
        if known := path.read_text("utf-8").strip():
            return known
    except FileNotFoundError:
        pass
    import uuid_utils

    minted = str(uuid_utils.uuid7())
    write_private(path, minted.encode() + b"\n")
    return minted


def health_port_for(profile: str) -> int:
    if not profile:
        return protocol.DEFAULT_HEALTH_PORT
    return protocol.DEFAULT_HEALTH_PORT + 1 + sum(profile.encode()) % 1000


def launcher_url(environ: Mapping[str, str]) -> str:
    """URL of a stack that runs on this machine, from its launcher's `run.json`; empty when there is none.

    The file of a stack that was killed stays behind: it counts only while the process that wrote it lives.
    """
    import psutil

    root = Path(environ.get("MULTICA_STATE_DIR") or ".state")
    try:
        data = json.loads((root / "run.json").read_text("utf-8"))
        url, pid, started = str(data["http_url"] or ""), int(data["pid"]), float(data["started"])
        alive = abs(psutil.Process(pid).create_time() - started) < 2
    except (OSError, ValueError, TypeError, LookupError, psutil.Error):
        return ""
    return url if alive else ""


# --- settings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RuntimeInfo:
    """One agent CLI of this machine, registered in one workspace. `executable` is the argv prefix to launch."""

    id: str
    workspace_id: str
    provider: str
    name: str = ""
    profile_id: str = ""
    executable: tuple[str, ...] = ()
    fixed_args: tuple[str, ...] = ()
    version: str = ""


@dataclass(frozen=True)
class DaemonSettings:
    """Every knob of the daemon. Durations are product seconds; `time_scale` is applied by the clock alone."""

    server_url: str
    token: str
    daemon_id: str
    profile: str = ""
    home: Path = Path(".")
    workspaces_root: Path = Path("multica_workspaces")
    device_name: str = "local-machine"
    runtime_name: str = "Local Agent"
    cli_version: str = __version__
    launched_by: str = ""
    health_port: int = protocol.DEFAULT_HEALTH_PORT
    time_scale: float = 1.0
    max_concurrent_tasks: int = protocol.DEFAULT_SLOTS
    poll_interval: float = protocol.POLL_INTERVAL
    heartbeat_interval: float = protocol.HEARTBEAT_INTERVAL
    status_poll_interval: float = protocol.STATUS_POLL_INTERVAL
    prepare_budget: float = protocol.PREPARE_BUDGET
    agent_timeout: float = 0.0
    agent_idle_watchdog: float = 1800.0
    agent_tool_watchdog: float = 7200.0
    stop_grace: float = 5.0
    drain_timeout: float = protocol.SHUTDOWN_DRAIN
    websocket: bool = True
    keep_env_after_task: bool = False
    agent_temp_base: str = "/tmp"
    gc_enabled: bool = True
    gc_interval: float = 2 * 3600.0
    gc_ttl: float = 86400.0
    gc_completed_task_ttl: float = 0.0
    gc_orphan_ttl: float = 72 * 3600.0
    gc_artifact_ttl: float = 12 * 3600.0
    gc_artifact_patterns: tuple[str, ...] = DEFAULT_GC_ARTIFACTS
    gc_repo_ttl: float = 30 * 86400.0
    profile_command_overrides: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def state_dir(self) -> Path:
        """Pid file, logs and the outbox of terminal reports."""
        return self.home

    def agent_setting(self, provider: str, name: str) -> str:
        """`MULTICA_<PROVIDER>_<NAME>` of the daemon's environment: PATH, MODEL or ARGS of one agent CLI."""
        return self.environ.get(f"MULTICA_{provider.upper().replace('-', '_')}_{name}", "")


_Read = Callable[[str], Any]


def _positive_int(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise ConfigError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _patterns(text: str) -> tuple[str, ...]:
    # Basenames only: an entry with a slash could reach outside the directory that is being cleaned.
    return tuple(item for part in text.split(",") if (item := part.strip()) and "/" not in item)


def _flag(text: str) -> bool:
    return parse_bool(text, False)


def _on_flag(text: str) -> bool:
    return parse_bool(text, True)


# field of DaemonSettings -> environment variable, key of the config file ("" = none), reader
_KNOBS: Final[Mapping[str, tuple[str, str, _Read]]] = {
    "device_name": ("MULTICA_DAEMON_DEVICE_NAME", "device_name", str),
    "runtime_name": ("MULTICA_AGENT_RUNTIME_NAME", "runtime_name", str),
    "launched_by": ("MULTICA_LAUNCHED_BY", "", str),
    "health_port": ("MULTICA_DAEMON_HEALTH_PORT", "health_port", int),
    "time_scale": ("MULTICA_TIME_SCALE", "", float),
    "max_concurrent_tasks": ("MULTICA_DAEMON_MAX_CONCURRENT_TASKS", "max_concurrent_tasks", _positive_int),
    "poll_interval": ("MULTICA_DAEMON_POLL_INTERVAL", "poll_interval", parse_duration),
    "heartbeat_interval": ("MULTICA_DAEMON_HEARTBEAT_INTERVAL", "heartbeat_interval", parse_duration),
    "agent_timeout": ("MULTICA_AGENT_TIMEOUT", "agent_timeout", parse_duration),
    "agent_idle_watchdog": ("MULTICA_AGENT_IDLE_WATCHDOG", "", parse_duration),
    "agent_tool_watchdog": ("MULTICA_AGENT_TOOL_WATCHDOG", "", parse_duration),
    "stop_grace": ("MULTICA_AGENT_STOP_GRACE", "agent_stop_grace", parse_duration),
    "drain_timeout": ("MULTICA_DAEMON_DRAIN_TIMEOUT", "drain_timeout", parse_duration),
    "websocket": ("MULTICA_DAEMON_WEBSOCKET", "websocket", _on_flag),
    "keep_env_after_task": ("MULTICA_KEEP_ENV_AFTER_TASK", "", _flag),
    "agent_temp_base": ("MULTICA_AGENT_TEMP_BASE", "", str),
    "gc_enabled": ("MULTICA_GC_ENABLED", "", _on_flag),
    "gc_interval": ("MULTICA_GC_INTERVAL", "", parse_duration),
    "gc_ttl": ("MULTICA_GC_TTL", "", parse_duration),
    "gc_completed_task_ttl": ("MULTICA_GC_COMPLETED_TASK_TTL", "", parse_duration),
    "gc_orphan_ttl": ("MULTICA_GC_ORPHAN_TTL", "", parse_duration),
    "gc_artifact_ttl": ("MULTICA_GC_ARTIFACT_TTL", "", parse_duration),
    "gc_artifact_patterns": ("MULTICA_GC_ARTIFACT_PATTERNS", "", _patterns),
    "gc_repo_ttl": ("MULTICA_GC_REPO_TTL", "", parse_duration),
}


def _knob_values(config: ConfigFile, environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, (variable, key, read) in _KNOBS.items():
        source, text = variable, environ.get(variable, "")
        if not text and key:
            source, text = f"{key} in {config.path}", config.text(key)
        if not text:
            continue
        try:
            values[name] = read(text)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{source}: {error}") from error
    return values


def server_url(config: ConfigFile, environ: Mapping[str, str]) -> str:
    """Environment, else config file, else a stack on this machine, else the default port of this one."""
    chosen = environ.get("MULTICA_SERVER_URL") or config.text("server_url") or launcher_url(environ)
    return normalise_server_url(chosen or DEFAULT_SERVER_URL)


def _workspaces_root(config: ConfigFile, environ: Mapping[str, str], profile: str) -> Path:
    chosen = environ.get("MULTICA_WORKSPACES_ROOT") or config.text("workspaces_root")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return home_dir(environ).parent / ("multica_workspaces" + (f"_{profile}" if profile else ""))


def load_settings(
    environ: Mapping[str, str], *, profile: str = "", overrides: Mapping[str, Any] | None = None
) -> DaemonSettings:
    """Settings of one profile: `overrides` (flags) over environment over config file over default.

    The token comes from the config file alone, so that a task's own token can never become the daemon's. Raises
    ConfigError naming the setting; an empty token is returned as it is.
    """
    config = ConfigFile.load(environ, profile)
    overridden = config.values.get("profile_command_overrides")
    values: dict[str, Any] = {
        "server_url": server_url(config, environ),
        "token": config.text("token"),
        "daemon_id": ensure_daemon_id(environ),
        "profile": profile,
        "home": profile_dir(environ, profile),
        "workspaces_root": _workspaces_root(config, environ, profile),
        "device_name": socket.gethostname() or "local-machine",
        "health_port": health_port_for(profile),
        "profile_command_overrides": overridden if isinstance(overridden, dict) else {},
        "environ": dict(environ),
    }
    values |= _knob_values(config, environ)
    values |= {key: value for key, value in (overrides or {}).items() if value is not None}
    settings = DaemonSettings(**values)
    if not settings.time_scale > 0:
        raise ConfigError("MULTICA_TIME_SCALE must be greater than 0")
    return settings
