"""Nothing that looks like a credential, or is known to be one, leaves the machine."""

from __future__ import annotations

import time

import pytest

from daemon_client.agents import base
from daemon_client.agents.redact import MASK, Redactor

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"


@pytest.mark.parametrize(
    "secret",
    [
        f"mat_{LETTERS[:40]}",
        f"mul_{LETTERS[:40]}",
        f"sk-ant-api03-{LETTERS}",
        f"ghp_{LETTERS[:36]}",
        f"github_pat_{LETTERS}",
        f"glpat-{LETTERS[:20]}",
        f"xoxb-{LETTERS[:24]}",
        "AKIA" + LETTERS[:16].upper(),
        f"AIza{LETTERS[:35]}",
        f"sk_live_{LETTERS[:24]}",
        f"eyJ{LETTERS[:20]}.{LETTERS[:20]}.{LETTERS[:20]}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{LETTERS}\n{LETTERS}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{LETTERS}\n",
    ],
)
def test_shapes(secret: str) -> None:
    """A credential is recognised by its shape in any text around it."""
    shown = Redactor().text(f"before '{secret}' after")
    assert secret.splitlines()[0] not in shown
    assert LETTERS[:16] not in shown
    assert shown.startswith("before ")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Authorization: Bearer {LETTERS}", f"Authorization: Bearer {MASK}"),
        ("postgres://me:hunter22@db/x", f"postgres://me:{MASK}@db/x"),
        ("export MY_API_KEY=abcdef123", f"export MY_API_KEY={MASK}"),
        ('{"DB_PASSWORD": "longer-than-six"}', f'{{"DB_PASSWORD": "{MASK}"}}'),
        ("the token bucket has 5 tokens: fine", "the token bucket has 5 tokens: fine"),
        ("see https://example.org/a:b/c", "see https://example.org/a:b/c"),
    ],
)
def test_what_stays_readable(text: str, shown: str) -> None:
    assert Redactor().text(text) == shown


def test_values_of_the_environment() -> None:
    """Entries with a telling name and all entries of the agent itself are masked; short words and paths are not."""
    env = {
        "MULTICA_TOKEN": "mat_short",
        "DEPLOY_SECRET": "s3cr3t-value",
        "SSH_AUTH_SOCK": "/run/ssh/agent",
        "USE_AUTH": "true",
        "REGION": "eu-central-1-custom",
        "LEVEL": "debug",
        "HOME": "/home/somebody",
        "MULTI_LINE_KEY": "first-line-of-it\nsecond-line-of-it",
        "MULTICA_CUSTOM_ENV_NAMES": "REGION,LEVEL",
    }
    shown = Redactor.for_env(env).text(
        "mat_short s3cr3t-value /run/ssh/agent true eu-central-1-custom debug /home/somebody second-line-of-it"
    )
    assert shown == f"{MASK} {MASK} /run/ssh/agent true {MASK} debug /home/somebody {MASK}"


def test_the_longer_secret_wins() -> None:
    assert Redactor(["secret", "secret-and-more"]).text("x secret-and-more y") == f"x {MASK} y"


def test_nested_input_and_keys() -> None:
    """Tool input is cleaned at every depth, keys included, and nothing nests without end."""
    redactor = Redactor(["hidden-value"])
    event = redactor.event(base.ToolUse("Bash", {"a": [{"hidden-value": "x hidden-value", "n": 5}], "ok": None}, "c"))
    assert event == base.ToolUse("Bash", {"a": [{MASK: f"x {MASK}", "n": 5}], "ok": None}, "c")
    deep: object = "hidden-value"
    for _ in range(100):
        deep = [deep]
    assert "hidden-value" not in str(redactor.value(deep))


def test_every_kind_of_event() -> None:
    redactor = Redactor(["hidden-value"])
    for event in (base.Text("hidden-value"), base.Thinking("hidden-value"), base.AgentError("hidden-value")):
        assert "hidden-value" not in str(redactor.event(event))
    assert redactor.event(base.ToolResult("t", "hidden-value")) == base.ToolResult("t", MASK)
    assert redactor.event(base.SessionStarted("hidden-value")) == base.SessionStarted("hidden-value")


@pytest.mark.parametrize(
    "part",
    [
        "x",
        "X",
        "a.",
        "TOKEN",
        "TOKEN ",
        "a://",
        "a:",
        "://a:",
        "eyJaaaaaaaa.",
        "Bearer ",
        "sk-",
        "-----BEGIN PRIVATE KEY-----",
        " ",
        "authorization: basic ",
    ],
)
def test_hostile_texts_take_no_longer_than_others(part: str) -> None:
    """Agents print megabytes without a space; no text may stop the daemon's loop, whatever its shape."""
    text = part * (200_000 // len(part))
    before = time.process_time()
    Redactor(["known-secret"]).text(text)
    assert time.process_time() - before < 2.0
