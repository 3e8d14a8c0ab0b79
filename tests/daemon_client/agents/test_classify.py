"""Error texts as CLIs and providers write them, and the reason that each must get."""

from __future__ import annotations

import pytest

from daemon_client import protocol
from daemon_client.agents.classify import classify, classify_exit


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", protocol.REASON_UNKNOWN),
        ("something odd happened", protocol.REASON_UNKNOWN),
        ("API Error: 400 prompt is too long: 210000 tokens > 200000", protocol.REASON_CONTEXT_OVERFLOW),
        ("This model's maximum context length is 128000 tokens", protocol.REASON_CONTEXT_OVERFLOW),
        ("input exceeds the context window of this model", protocol.REASON_CONTEXT_OVERFLOW),
        ("model_context_window_exceeded", protocol.REASON_CONTEXT_OVERFLOW),
        ("request exceeds the token limit", protocol.REASON_CONTEXT_OVERFLOW),
        ("no API key configured for provider openai", protocol.REASON_MISSING_CONFIG),
        ("--dangerously-skip-permissions cannot be used with root/sudo privileges", protocol.REASON_MISSING_CONFIG),
        ("API Error: 401 invalid x-api-key", protocol.REASON_PROVIDER_AUTH),
        ("HTTP 403: request not allowed", protocol.REASON_PROVIDER_AUTH),
        ("Not logged in. Please run /login", protocol.REASON_PROVIDER_AUTH),
        ("OAuth token has expired", protocol.REASON_PROVIDER_AUTH),
        ("402 Payment Required: rate limit of your plan", protocol.REASON_PROVIDER_QUOTA),
        ("You exceeded your current quota, please check your plan", protocol.REASON_PROVIDER_QUOTA),
        ("Your credit balance is too low to access the API", protocol.REASON_PROVIDER_QUOTA),
        ("Claude usage limit reached", protocol.REASON_PROVIDER_QUOTA),
        ("400 invalid_request_error: messages.3: must have non-empty content", protocol.REASON_API_INVALID_REQUEST),
        ("image exceeds the maximum size of 5 MB", protocol.REASON_API_INVALID_REQUEST),
        ("API Error: Request rejected (429) · slow down", protocol.REASON_PROVIDER_CAPACITY),
        ("status=429", protocol.REASON_PROVIDER_CAPACITY),
        ('{"error":{"code":529,"message":"x"}}', protocol.REASON_PROVIDER_CAPACITY),
        ("Overloaded", protocol.REASON_PROVIDER_CAPACITY),
        ("API Error: 500 boom", protocol.REASON_PROVIDER_SERVER),
        ("503 Service Unavailable", protocol.REASON_PROVIDER_SERVER),
        ("upstream: Bad Gateway", protocol.REASON_PROVIDER_SERVER),
        ("API Error: Connection to the API was lost (ECONNRESET)", protocol.REASON_PROVIDER_NETWORK),
        ("dial tcp 10.0.0.1:5000: connect: connection refused", protocol.REASON_PROVIDER_NETWORK),
        ("getaddrinfo ENOTFOUND api.example.org", protocol.REASON_PROVIDER_NETWORK),
        ("stream disconnected before completion", protocol.REASON_PROVIDER_NETWORK),
        ("context deadline exceeded", protocol.REASON_PROVIDER_NETWORK),
        ("the connection was closed mid-response", protocol.REASON_PROVIDER_NETWORK),
        ("fatal: unable to access: Could not resolve host: example.org", protocol.REASON_PROVIDER_NETWORK),
        ("The model claude-x does not exist", protocol.REASON_MODEL_UNAVAILABLE),
        ("unknown model gpt-9", protocol.REASON_MODEL_UNAVAILABLE),
        ("the agent returned no parseable output", protocol.REASON_EMPTY_OUTPUT),
        ("the step timed out after 600 s", protocol.REASON_AGENT_TIMEOUT),
        ("bash: claude: command not found", protocol.REASON_MISSING_EXECUTABLE),
        ("fork/exec ./agent: exec format error", protocol.REASON_MISSING_EXECUTABLE),
        ("version 0.9.0 is too old", protocol.REASON_VERSION_UNSUPPORTED),
        ("the agent exited with code 3", protocol.REASON_PROCESS_FAILURE),
        ("the agent was ended by signal 9", protocol.REASON_PROCESS_FAILURE),
        ("panic: index out of range", protocol.REASON_PROCESS_FAILURE),
    ],
)
def test_texts(text: str, reason: str) -> None:
    """R-04 to R-08 depend on these: a network error is retried, a rate limit or a bad key is not."""
    assert classify(text) == reason
    assert classify(text.upper()) == reason


@pytest.mark.parametrize(
    "text",
    [
        "took 15003 ms",
        "v1.500.2 of the tool",
        "main.js:500:12",
        "id 74291",
        "port 54029",
        "0.429 s",
        "5001 files",
        "task 016ee526d633",
        "a429",
    ],
)
def test_numbers_that_are_no_status(text: str) -> None:
    """A status code stands alone; digits of a time, a version, a port or a position are none."""
    assert classify(text) == protocol.REASON_UNKNOWN


def test_exits() -> None:
    assert classify_exit(127, "") == protocol.REASON_MISSING_EXECUTABLE
    assert classify_exit(1, "what?") == protocol.REASON_PROCESS_FAILURE
    assert classify_exit(1, "connection reset by peer") == protocol.REASON_PROVIDER_NETWORK
