"""`multica daemon`: start, stop and look at the process that runs agents on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from daemon_client.cli import add_output, add_profile, emit, note
from daemon_client.config import DaemonSettings, load_settings, parse_duration
from daemon_client.errors import AlreadyRunning, ConfigError, DaemonError, NotAuthenticated

START_LIMIT = 45.0
LOG_BYTES, LOG_FILES = 20 * 1024 * 1024, 5


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("daemon", help="run agents on this machine", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    start = verbs.add_parser("start", help="start the daemon in the background")
    start.add_argument("--foreground", action="store_true", help="stay in this terminal until Ctrl-C")
    start.add_argument("--max-concurrent-tasks", type=int, metavar="N", help="tasks that may run here at once (20)")
    start.add_argument("--workspaces-root", metavar="DIR", help="where tasks get their directories")
    start.add_argument("--health-port", type=int, metavar="PORT", help="port on 127.0.0.1; 0 lets the system choose")
    stop = verbs.add_parser("stop", help="stop the daemon; running tasks are handed back to the server")
    stop.add_argument(
        "--drain", default=None, metavar="DURATION", help="let running tasks end first, at most this long"
    )
    status = verbs.add_parser("status", help="show what the daemon is doing")
    for each, run in ((start, _start), (stop, _stop), (status, _status)):
        add_output(each)
        add_profile(each)
        each.set_defaults(run=run)


def _settings(args: argparse.Namespace) -> DaemonSettings:
    root = getattr(args, "workspaces_root", None)
    slots = getattr(args, "max_concurrent_tasks", None)
    if slots is not None and slots < 1:
        raise ConfigError("--max-concurrent-tasks must be at least 1")
    overrides = {
        "max_concurrent_tasks": slots,
        "workspaces_root": Path(root).expanduser().absolute() if root else None,
        "health_port": getattr(args, "health_port", None),
    }
    return load_settings(os.environ, profile=args.profile, overrides=overrides)


def _not_in_a_task() -> None:
    if os.environ.get("MULTICA_TASK_CONFIG_ROOT"):
        raise ConfigError("the daemon cannot be started or stopped from inside a task")


# --- start ---------------------------------------------------------------------------------------------------------


def _start(args: argparse.Namespace) -> int:
    _not_in_a_task()
    settings = _settings(args)
    if not settings.token:
        raise NotAuthenticated("not logged in; run: multica login --token <personal access token>")
    if args.foreground:
        return _foreground(settings)
    return _background(args, settings)


def _foreground(settings: DaemonSettings) -> int:
    import asyncio

    from daemon_client.engine.supervisor import Daemon

    _log_to(sys.stderr)

    async def live() -> None:
        import signal

        daemon = Daemon(settings)
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, daemon.request_stop)
        await daemon.run()

    asyncio.run(live())
    return 0


def _log_to(stream: Any) -> None:
    """Log lines to a stream; a daemon in the background writes to a file that is cut at 20 MB, five of them kept."""
    import logging
    import logging.handlers

    handler: logging.Handler = logging.StreamHandler(stream)
    if path := os.environ.get("MULTICA_DAEMON_LOG_FILE"):
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES)
    level = logging.DEBUG if os.environ.get("MULTICA_DEBUG") else logging.INFO
    logging.basicConfig(
        level=level, handlers=[handler], format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", force=True
    )
    logging.getLogger("websockets").setLevel(logging.WARNING)


def _background(args: argparse.Namespace, settings: DaemonSettings) -> int:
    import subprocess

    running = _ask(settings, "GET", "/health")
    if running:
        raise AlreadyRunning(running.get("pid"), settings.health_port)
    settings.home.mkdir(parents=True, exist_ok=True)
    log_file, error_file = settings.home / "daemon.log", settings.home / "daemon.err.log"
    command = [sys.executable, "-m", "daemon_client", "daemon", "start", "--foreground", *_flags(args)]
    environ = dict(os.environ) | {"MULTICA_DAEMON_LOG_FILE": str(log_file)}
    with error_file.open("wb") as errors:
        # A session of its own: closing the terminal must not end the daemon.
        child = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
        )
    health = _until_running(settings, child)
    if health is None:
        raise DaemonError(f"the daemon ended at once: {_tail(error_file)}\nlogs: {log_file} and {error_file}")
    if health.get("status") != "running":
        note(f"the daemon is started but not connected yet; see {log_file}")
    emit(args, health, f"daemon started with process id {health.get('pid')}; log: {log_file}")
    return 0


def _flags(args: argparse.Namespace) -> list[str]:
    given = {
        "--profile": args.profile,
        "--max-concurrent-tasks": args.max_concurrent_tasks,
        "--workspaces-root": args.workspaces_root,
        "--health-port": args.health_port,
    }
    return [text for flag, value in given.items() if value not in (None, "") for text in (flag, str(value))]


def _until_running(settings: DaemonSettings, child: Any) -> dict[str, Any] | None:
    """The daemon's health once it runs, or as it is after 45 s; None when the process has ended."""
    import time

    ends = time.monotonic() + START_LIMIT
    health: dict[str, Any] | None = None
    while child.poll() is None:
        health = _ask(settings, "GET", "/health")
        if health and health.get("status") == "running":
            return health
        if time.monotonic() >= ends:
            return health or {"status": "starting", "pid": child.pid}
        time.sleep(0.1)
    return None


def _tail(path: Path) -> str:
    lines = path.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no message"


# --- stop and status -----------------------------------------------------------------------------------------------


def _port(settings: DaemonSettings) -> int:
    from daemon_client.engine.singleton import read_state

    port = read_state(settings.home).get("port")
    return port if isinstance(port, int) else settings.health_port


def _ask(settings: DaemonSettings, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Ask this profile's daemon. One that belongs to another profile is not it, whatever the port says."""
    import asyncio

    from daemon_client.local_http import call

    port = _port(settings)
    health = asyncio.run(call("GET", port, "/health"))
    if health is None or health.get("profile") != settings.profile:
        return None
    return health if path == "/health" else asyncio.run(call(method, port, path, body))


def _stop(args: argparse.Namespace) -> int:
    _not_in_a_task()
    settings = _settings(args)
    if args.drain is not None:
        parse_duration(args.drain)
    answer = _ask(settings, "POST", "/shutdown", {"drain": args.drain} if args.drain else {})
    if answer is None:
        emit(args, {"status": "stopped"}, "no daemon is running")
        return 0
    limit = 60.0 + (parse_duration(args.drain) if args.drain else settings.drain_timeout)
    pid = answer.get("pid")
    if isinstance(pid, int) and not _gone(pid, limit):
        raise DaemonError(f"the daemon with process id {pid} is still stopping after {limit:g} s")
    emit(args, {"status": "stopped", "pid": pid}, f"daemon with process id {pid} stopped")
    return 0


def _gone(pid: int, limit: float) -> bool:
    import psutil

    try:
        psutil.Process(pid).wait(timeout=limit)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def _status(args: argparse.Namespace) -> int:
    """Exit code 0 when a daemon runs, 1 when none does."""
    health = _ask(_settings(args), "GET", "/health")
    if health is None:
        emit(args, {"status": "stopped"}, "no daemon is running; start one with: multica daemon start")
        return 1
    workspaces = [each for each in health.get("workspaces", []) if isinstance(each, dict)]
    slots = health.get("slots", {})
    lines = [
        f"daemon {health.get('status')}, process id {health.get('pid')}, up {health.get('uptime')}",
        f"server {health.get('server_url')}",
        f"tasks {health.get('running_task_count')} running of {health.get('active_task_count')} claimed; "
        f"{slots.get('free')} of {slots.get('total')} slots free; "
        f"{health.get('unreported_task_count')} reports waiting",
        f"agents {', '.join(health.get('agents', [])) or 'none'}",
        *(
            f"workspace {each.get('name') or each.get('id')}: {len(each.get('runtimes', []))} runtimes"
            for each in workspaces
        ),
    ]
    emit(args, health, "\n".join(lines))
    return 0
