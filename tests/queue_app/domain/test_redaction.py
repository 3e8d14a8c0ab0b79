"""Secrets out of texts, and texts that the database can store."""

from __future__ import annotations

import pytest

from queue_app.domain.redaction import clean, clean_json, redact

SECRETS = (
    "mul_0123456789abcdef0123",
    "mat_0123456789abcdef0123",
    "sk-ant-api03-abcdefghij",
    "ghp_abcdefghijklmnopqrstuvwx",
    "github_pat_11ABCDEFG0abcdefghij",
    "glpat-abcdefghijklmnopqrst",
    "xoxb-12345678-abcdefgh",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sflKxwRJSM",
)


@pytest.mark.parametrize("secret", SECRETS)
def test_known_shapes_are_masked(secret: str) -> None:
    assert secret not in redact(f"calling with {secret} failed")


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hunter2hunter2",
        "PASSWORD=hunter2hunter2",
        '{"api_key": "hunter2hunter2"}',
        "https://bob:hunter2hunter2@git.example/r.git",
        "redis://:hunter2hunter2@host/0",
        "client_secret: hunter2hunter2",
    ],
)
def test_what_follows_a_telling_name_is_masked(text: str) -> None:
    masked = redact(text)
    assert "hunter2" not in masked
    assert "[redacted]" in masked


def test_ordinary_words_stay() -> None:
    text = "token limit reached after 3 tokens; see https://example.test/a?b=c and skip-this"
    assert redact(text) == text


def test_texts_become_storable() -> None:
    assert clean("a\x00b\ud800c") == "ab?c"
    assert clean_json({"a\x00": ["\x00b", 1, None, {"c": "d\x00"}]}) == {"a": ["b", 1, None, {"c": "d"}]}
