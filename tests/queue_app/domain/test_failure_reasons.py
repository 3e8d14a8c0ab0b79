"""The closed list of reasons, its six decisions, and the reading of texts."""

from __future__ import annotations

import pytest

from daemon_client import protocol
from queue_app.domain import failure_reasons as reasons
from queue_app.domain.failure_reasons import RetryRule

NEVER, ONCE = RetryRule.NEVER, RetryRule.AT_ONCE
# code, retry, session reusable: the rows of the protocol's list of reasons.
EXPECTED = (
    ("timeout", ONCE, True),
    ("runtime_offline", RetryRule.WHEN_HEALTHY, True),
    ("runtime_recovery", ONCE, True),
    ("runtime_reconnect_timeout", NEVER, True),
    ("queued_expired", NEVER, True),
    ("issue_window_restricted", NEVER, True),
    ("skill_bundle_unavailable", ONCE, True),
    ("invalid_task_identity", NEVER, True),
    ("runtime_cli_timeout", NEVER, True),
    ("local_directory_error", NEVER, True),
    ("idle_watchdog", NEVER, True),
    ("cancelled", NEVER, True),
    ("agent_blocked", NEVER, True),
    ("iteration_limit", NEVER, False),
    ("agent_fallback_message", NEVER, False),
    ("api_invalid_request", NEVER, False),
    ("codex_resume_oversized", NEVER, False),
    ("codex_semantic_inactivity", ONCE, False),
    ("agent_error.context_overflow", NEVER, False),
    ("agent_error.provider_network", RetryRule.LADDER, True),
    ("agent_error.provider_auth_or_access", NEVER, True),
    ("agent_error.provider_quota_limit", NEVER, True),
    ("agent_error.provider_capacity_or_rate_limit", RetryRule.IF_OPTED_IN, True),
    ("agent_error.provider_server_error", NEVER, True),
    ("agent_error.process_failure", NEVER, True),
    ("agent_error.empty_or_unparseable_output", NEVER, True),
    ("agent_error.agent_timeout", NEVER, True),
    ("agent_error.missing_config", NEVER, True),
    ("agent_error.model_not_found_or_unavailable", NEVER, True),
    ("agent_error.runtime_version_unsupported", NEVER, True),
    ("agent_error.runtime_missing_executable", NEVER, True),
    ("agent_error.unknown", NEVER, True),
)


def test_the_list_is_closed() -> None:
    """R-01: exactly these reasons, and every one that the daemon can send."""
    assert set(reasons.REASONS) == {code for code, *_ in EXPECTED}
    sent = {value for name, value in vars(protocol).items() if name.startswith("REASON_")}
    assert sent <= set(reasons.REASONS)


@pytest.mark.parametrize(("code", "retry", "reusable"), EXPECTED)
def test_each_reason_makes_all_six_decisions(code: str, retry: RetryRule, reusable: bool) -> None:
    """R-02, R-09, A-03, S-05, S-06, S-07, S-08, S-09: retry, session, comment, metric, autopilot and hint."""
    reason = reasons.of(code)
    assert (reason.retry, reason.session_reusable) == (retry, reusable)
    assert isinstance(reason.comment, bool)
    assert reason.metric in reasons.REASONS
    assert reason.autopilot in reasons.AutopilotSync
    assert reason.label
    assert reason.hint.endswith(".")


TEXTS = (
    ("This model's maximum context length is 200000 tokens", "agent_error.context_overflow"),
    ('API Error: 400 {"type":"invalid_request_error","message":"prompt is too long"}', "agent_error.context_overflow"),
    ("stop reason: model_context_window_exceeded", "agent_error.context_overflow"),
    ("No API key found for provider", "agent_error.missing_config"),
    ("API Error: 401 Unauthorized", "agent_error.provider_auth_or_access"),
    ("Please run /login", "agent_error.provider_auth_or_access"),
    ("OAuth token has expired", "agent_error.provider_auth_or_access"),
    ("402 rate limit reached", "agent_error.provider_quota_limit"),
    ("You have insufficient_quota", "agent_error.provider_quota_limit"),
    ("400 invalid_request_error: messages.3 broken", "api_invalid_request"),
    ("429 Too Many Requests", "agent_error.provider_capacity_or_rate_limit"),
    ("529 overloaded_error", "agent_error.provider_capacity_or_rate_limit"),
    ("503 Service Unavailable", "agent_error.provider_server_error"),
    ("stream disconnected before completion", "agent_error.provider_network"),
    ("opencode stream ended before the message", "agent_error.provider_network"),
    ("read ECONNRESET", "agent_error.provider_network"),
    ("dial tcp 10.0.0.1:443: i/o timeout", "agent_error.provider_network"),
    ("model claude-x not found", "agent_error.model_not_found_or_unavailable"),
    ("the agent gave empty output", "agent_error.empty_or_unparseable_output"),
    ("agent timed out after 7200 s", "agent_error.agent_timeout"),
    ("sh: codex: command not found", "agent_error.runtime_missing_executable"),
    ("version 0.1 is too old", "agent_error.runtime_version_unsupported"),
    ("the process exited with code 3", "agent_error.process_failure"),
    ("skill bundle sha256:1 could not be fetched", "skill_bundle_unavailable"),
    ("openclaw prepare: context deadline exceeded", "runtime_cli_timeout"),
    ("", "agent_error.unknown"),
    ("something nobody has seen", "agent_error.unknown"),
)


@pytest.mark.parametrize(("text", "code"), TEXTS)
def test_a_text_without_a_reason_is_read_once(text: str, code: str) -> None:
    """R-03: the words of a failure become a code of the list, in a fixed order of rules."""
    assert reasons.classify(text) == code
    for coarse in ("", "  ", None, "agent_error", "agent_error.unknown"):
        assert reasons.normalise(coarse, text) == code


@pytest.mark.parametrize(
    "text",
    [
        "took 4290 ms",
        "v1.429.0 released",
        "main.js:500:12",
        "line 5031",
        "port 14011",
        "build 2.503",
        "0x5029f",
        "016ee526d633",
    ],
)
def test_numbers_that_are_no_status_are_not_read_as_one(text: str) -> None:
    """R-03: a status stands alone; digits inside a longer number, a version or a place in a file are none."""
    assert reasons.classify(text) == "agent_error.unknown"


def test_a_given_code_is_never_second_guessed() -> None:
    """R-03: the same class with different texts behaves identically; an unfamiliar class is one fixed class."""
    assert reasons.normalise("timeout", "429 rate limit, connection refused") == "timeout"
    assert reasons.normalise("agent_error.provider_network", "") == "agent_error.provider_network"
    assert reasons.normalise("agent_error.from_the_future", "connection refused") == "agent_error.unknown"
    assert reasons.of("agent_error.from_the_future").code == "agent_error.unknown"
