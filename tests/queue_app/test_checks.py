"""Windows that can only misbehave are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as configured

from multica import env
from queue_app.checks import check_windows


def broken(settings: Any, **windows: float) -> list[str]:
    settings.MULTICA = {**configured.MULTICA, **windows}
    return [str(error.id) for error in check_windows()]


def test_what_ships_is_right_at_any_scale(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """L-02, L-13: the defaults hold, also when a test run scales them all."""
    for scale in ("1", "0.05", "0.0333", "3"):
        monkeypatch.setenv("MULTICA_TIME_SCALE", scale)
        settings.MULTICA = env.windows()
        assert check_windows() == []


@pytest.mark.parametrize(
    ("windows", "error"),
    [
        ({"CLAIM_RECOVERY_WINDOW": 60}, "queue.E001"),
        ({"RUNTIME_FRESHNESS": 149}, "queue.E002"),
        ({"HEARTBEAT_BATCH": 31}, "queue.E002"),
        ({"PREPARE_LEASE": 39}, "queue.E003"),
        ({"DISPATCH_TIMEOUT": 90}, "queue.E004"),
        ({"PREPARE_LEASE": 91}, "queue.E004"),
        ({"RUNTIME_RECONNECT_GRACE": 149}, "queue.E005"),
        ({"SWEEP_INTERVAL": 150}, "queue.E005"),
        ({"STOP_PENDING_LIMIT": 149}, "queue.E006"),
        ({"EMPTY_VERSION_TTL": 180}, "queue.E007"),
        ({"OMISSION_GAP": 14}, "queue.E008"),
        ({"CLAIM_BATCH_CAP": 33}, "queue.E009"),
        ({"MAX_DELIVERIES": 0}, "queue.E009"),
    ],
)
def test_each_rule_has_its_error(settings: Any, windows: dict[str, float], error: str) -> None:
    """L-02, L-13, AD-22: named by id, with what would happen to people."""
    assert error in broken(settings, **windows)
