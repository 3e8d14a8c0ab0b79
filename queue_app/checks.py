"""System checks that refuse windows which can only misbehave, compared before the time scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from daemon_client import protocol

SLACK = 45.0
"""Seconds beyond its parts that the freshness window leaves for jitter."""

Windows = dict[str, float]


@dataclass(frozen=True)
class Rule:
    """What must hold between windows, and what happens to people when it does not."""

    id: str
    holds: Callable[[Windows], bool]
    text: str
    hint: str


RULES: tuple[Rule, ...] = (
    Rule(
        "queue.E001",
        lambda w: w["CLAIM_RECOVERY_WINDOW"] > 2 * protocol.HTTP_TIMEOUT,
        "CLAIM_RECOVERY_WINDOW must be longer than a claim and a start together may take (30 s each)",
        "else a task is delivered again while its first delivery is still on its way",
    ),
    Rule(
        "queue.E002",
        lambda w: (
            w["RUNTIME_FRESHNESS"] >= w["HEARTBEAT_FLUSH"] + w["HEARTBEAT_INTERVAL"] + w["HEARTBEAT_BATCH"] + SLACK
        ),
        "RUNTIME_FRESHNESS must be at least HEARTBEAT_FLUSH + HEARTBEAT_INTERVAL + HEARTBEAT_BATCH + 45 s",
        "else a healthy machine whose heartbeat waits for its batch is taken offline",
    ),
    Rule(
        "queue.E003",
        lambda w: w["PREPARE_LEASE"] >= 2 * protocol.PREPARE_LEASE_REFRESH + protocol.PREPARE_LEASE_TIMEOUT,
        "PREPARE_LEASE must outlast one lost renewal (two periods of 15 s and a timeout of 10 s)",
        "else one lost request ends a healthy preparation",
    ),
    Rule(
        "queue.E004",
        lambda w: w["DISPATCH_TIMEOUT"] > w["CLAIM_RECOVERY_WINDOW"] >= w["PREPARE_LEASE"],
        "PREPARE_LEASE, CLAIM_RECOVERY_WINDOW and DISPATCH_TIMEOUT must grow in this order",
        "else a delivery that was only lost is failed instead of delivered again",
    ),
    Rule(
        "queue.E005",
        lambda w: w["RUNTIME_RECONNECT_GRACE"] >= w["RUNTIME_FRESHNESS"] > w["SWEEP_INTERVAL"],
        "SWEEP_INTERVAL, RUNTIME_FRESHNESS and RUNTIME_RECONNECT_GRACE must grow in this order",
        "else work is taken from machines that are not even offline",
    ),
    Rule(
        "queue.E006",
        lambda w: w["STOP_PENDING_LIMIT"] >= w["RUNTIME_FRESHNESS"],
        "STOP_PENDING_LIMIT must be at least RUNTIME_FRESHNESS",
        "else a second process starts beside an old one whose machine is already silent",
    ),
    Rule(
        "queue.E007",
        lambda w: w["EMPTY_VERSION_TTL"] > w["EMPTY_CLAIM_TTL"],
        "EMPTY_VERSION_TTL must be longer than EMPTY_CLAIM_TTL",
        "else a forgotten version makes an old empty verdict true again",
    ),
    Rule(
        "queue.E008",
        lambda w: w["OMISSION_GAP"] >= w["HEARTBEAT_INTERVAL"],
        "OMISSION_GAP must be at least HEARTBEAT_INTERVAL",
        "else two heartbeats that crossed the start of a task take it for lost",
    ),
    Rule(
        "queue.E009",
        lambda w: 1 <= w["CLAIM_BATCH_CAP"] <= protocol.CLAIM_BATCH_CAP and w["MAX_DELIVERIES"] >= 1,
        "CLAIM_BATCH_CAP must be 1 to 32 and MAX_DELIVERIES at least 1",
        "else daemons get more than they may hold, or nothing at all",
    ),
)
_COUNTS = frozenset({"CLAIM_BATCH_CAP", "MAX_DELIVERIES", "TIME_SCALE", "REDIS_TIMEOUT"})


@register("queue")
def check_windows(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """An error for each rule that the configured windows break; commands refuse to start with one."""
    given: Windows = settings.MULTICA
    scale = given.get("TIME_SCALE") or 1.0
    windows = {name: value if name in _COUNTS else value / scale for name, value in given.items()}
    return [Error(rule.text, hint=rule.hint, id=rule.id) for rule in RULES if not rule.holds(_rounded(windows))]


def _rounded(windows: Windows) -> Windows:
    # Scaling up again must not make 150 into 149.99999999999997.
    return {name: round(value, 6) for name, value in windows.items()}
