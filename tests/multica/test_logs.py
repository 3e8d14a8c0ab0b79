"""One line a record, and no credential in it."""

from __future__ import annotations

import json
import logging
import logging.config

import pytest
import structlog

from multica import logs

SECRETS = [
    "mul_0123456789abcdef0123456789abcdef01234567",
    "mat_0123456789abcdef0123456789abcdef01234567",
    "ghp_0123456789abcdef0123456789abcdef0123",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_tokens_are_hidden_wherever_they_stand(secret: str) -> None:
    hidden = logs.scrub(f"refused {secret} from client")
    assert secret not in hidden
    assert hidden.startswith(f"refused {secret[:4]}***")


def test_passwords_in_addresses_are_hidden() -> None:
    assert logs.scrub("postgresql://app:s3cret@db/x") == "postgresql://app:***@db/x"
    assert "abcdefghijklmnop" not in logs.scrub("Authorization: Bearer abcdefghijklmnop")


def test_values_under_secret_names_are_hidden_and_identifiers_are_not() -> None:
    event = logs.redact(None, "info", {"event": "x", "api_key": "abc", "claim_token": "0192", "input_tokens": 5})
    assert event == {"event": "x", "api_key": "***", "claim_token": "0192", "input_tokens": 5}


def emit(style: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    before = structlog.get_config()
    try:
        config = logs.config(style, "INFO")
        formatter = dict(config["formatters"]["main"])
        handler = logging.StreamHandler()
        handler.setFormatter(formatter.pop("()")(**formatter))
        logger = logging.Logger("queue_app.claim")
        logger.addHandler(handler)
        logger.info("delivered %s\nsecond", "task 7", extra={"runtime": "r1"})
        try:
            raise ValueError(SECRETS[0])
        except ValueError:
            logger.exception("failed")
        return capsys.readouterr().err.splitlines()
    finally:
        structlog.configure(**before)


def test_a_record_for_people_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = emit("line", capsys)
    assert lines[0][9:] == "INFO    queue_app.claim delivered task 7\\nsecond runtime=r1"
    assert lines[1].endswith("ERROR   queue_app.claim failed")
    assert lines[-1] == "ValueError: mul_***"


def test_a_record_for_collectors_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (json.loads(line) for line in emit("json", capsys))
    assert (first["level"], first["logger"], first["runtime"]) == ("info", "queue_app.claim", "r1")
    assert SECRETS[0] not in second["exception"]


def test_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="MULTICA_LOG_LEVEL"):
        logs.level_from("loud")


def test_an_outage_is_one_short_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    logger = logging.getLogger("outage.test")
    outage = logs.Outage(lambda: now[0])
    logger.addFilter(outage)
    try:
        for now[0] in (0.0, 1.0, 59.0, 60.0):
            try:
                raise ConnectionError("refused")
            except ConnectionError:
                logger.exception("Unexpected exception in receive task")
    finally:
        logger.removeFilter(outage)
    said = [(record.levelname, record.getMessage(), record.exc_info) for record in caplog.records]
    assert said == [("WARNING", "Unexpected exception in receive task ConnectionError: refused", None)] * 2


def test_the_channel_layer_is_filtered() -> None:
    before = structlog.get_config()
    try:
        config = logs.config("line", "INFO")
    finally:
        structlog.configure(**before)
    assert config["loggers"]["channels_redis.pubsub"]["filters"] == ["outage"]
