"""`multica config`: show and change the settings of a profile."""

from __future__ import annotations

import argparse
import os
from typing import Any

from daemon_client import config as settings
from daemon_client.cli import add_output, add_profile, emit
from daemon_client.errors import ConfigError

_TEXT = ("server_url", "app_url", "workspace_id", "device_name", "runtime_name", "workspaces_root")
_NUMBERS = ("max_concurrent_tasks", "health_port")
_DURATIONS = ("poll_interval", "heartbeat_interval", "agent_timeout", "agent_stop_grace", "drain_timeout")
_FLAGS = ("websocket",)
KEYS = (*_TEXT, *_NUMBERS, *_DURATIONS, *_FLAGS)


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("config", help="show or change settings", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    show = verbs.add_parser("show", help="print all settings; the token is never printed")
    get = verbs.add_parser("get", help="print one setting")
    get.add_argument("key", metavar="KEY")
    change = verbs.add_parser(
        "set",
        help="change one setting; a running daemon uses it after a restart",
        epilog="keys: " + ", ".join(KEYS),
    )
    change.add_argument("key", metavar="KEY")
    change.add_argument("value", metavar="VALUE", help="an empty value removes the setting")
    for each, run in ((show, _show), (get, _get), (change, _set)):
        add_output(each)
        add_profile(each)
        each.set_defaults(run=run)


def _visible(values: dict[str, Any]) -> dict[str, Any]:
    return {key: "set" if key == "token" and value else value for key, value in sorted(values.items())}


def _show(args: argparse.Namespace) -> int:
    file = settings.ConfigFile.load(os.environ, args.profile)
    values = _visible(file.values)
    emit(args, values, "\n".join([f"# {file.path}", *(f"{key} = {value}" for key, value in values.items())]))
    return 0


def _get(args: argparse.Namespace) -> int:
    values = _visible(settings.ConfigFile.load(os.environ, args.profile).values)
    emit(args, {args.key: values.get(args.key)}, str(values.get(args.key, "")))
    return 0


def _set(args: argparse.Namespace) -> int:
    file = settings.ConfigFile.load(os.environ, args.profile)
    if args.value == "":
        file.values.pop(checked_key(args.key), None)
    else:
        file.values[args.key] = read_value(args.key, args.value)
    file.save()
    emit(args, {args.key: file.values.get(args.key)}, f"{args.key} is set in {file.path}")
    return 0


def checked_key(key: str) -> str:
    if key == "token":
        raise ConfigError("the token is set by: multica login --token <personal access token>")
    if key not in KEYS:
        raise ConfigError(f"there is no setting {key!r}; the settings are: {', '.join(KEYS)}")
    return key


def read_value(key: str, value: str) -> str | int | bool:
    """The value as it is stored; ConfigError when the daemon could not use it."""
    if checked_key(key) in _NUMBERS:
        if not value.isdigit():
            raise ConfigError(f"{key} must be a whole number")
        return int(value)
    if key in _DURATIONS:
        settings.parse_duration(value)
    if key in _FLAGS:
        return settings.parse_bool(value, True)
    return settings.normalise_server_url(value) if key == "server_url" else value
