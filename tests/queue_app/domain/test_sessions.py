"""When a conversation goes on, and when only its files do."""

from __future__ import annotations

import itertools

import pytest

from queue_app.domain import sessions

CONDITIONS = list(itertools.product((True, False), repeat=4))


@pytest.mark.parametrize(("session", "directory", "clean", "capable"), CONDITIONS)
def test_a_session_goes_on_only_under_all_four_conditions(
    session: bool, directory: bool, clean: bool, capable: bool
) -> None:
    """S-12, S-11: the truth table; the directory is offered whenever it is known, whatever becomes of the session."""
    offer = sessions.resume(
        session_id="s-1" if session else None,
        work_dir="/w" if directory else None,
        poison=not clean,
        can_resume=capable,
    )
    assert offer.session_id == ("s-1" if session and directory and clean and capable else None)
    assert offer.work_dir == ("/w" if directory else None)
    assert offer.because


@pytest.mark.parametrize(
    "change",
    [{"same_runtime": False}, {"force_fresh": True}, {"retired": ("s-1",)}],
    ids=lambda change: next(iter(change)),
)
def test_three_more_reasons_to_start_afresh(change: dict[str, object]) -> None:
    """Q-21: another machine, a wish for a fresh start, a session that was given up."""
    offer = sessions.resume(session_id="s-1", work_dir="/w", poison=False, can_resume=True, **change)  # type: ignore[arg-type]
    assert (offer.session_id, offer.work_dir) == (None, "/w")


@pytest.mark.parametrize(
    "code",
    [
        "iteration_limit",
        "agent_fallback_message",
        "api_invalid_request",
        "agent_error.context_overflow",
        "codex_semantic_inactivity",
        "codex_resume_oversized",
    ],
)
def test_poisoning_reasons(code: str) -> None:
    """S-05, S-06, S-07, S-08, S-09: each leaves its conversation behind."""
    assert sessions.poisoned(code, "")


@pytest.mark.parametrize(
    "text",
    [
        'API Error: 400 {"type":"invalid_request_error"}',
        "Could not resolve authentication method",
        "messages.12: content must be non-empty",
        "image 3 exceeds the limit of 5 MB",
    ],
)
def test_texts_that_poison_whatever_the_reason(text: str) -> None:
    """S-10: a provider's refusal of the history is recognised by its words, too."""
    assert sessions.poisoned("agent_error.unknown", text)
    assert not sessions.poisoned(None, text)


def test_clean_failures_do_not_poison() -> None:
    """S-11: an infrastructure failure leaves the conversation usable."""
    for code in ("timeout", "runtime_recovery", "runtime_offline", "agent_error.provider_network"):
        assert not sessions.poisoned(code, "connection refused at port 4000")


@pytest.mark.parametrize(
    ("provider", "family", "can"),
    [("claude", None, True), ("plain", None, False), ("x", "plain", False), ("x", "claude", True)],
)
def test_which_agents_resume(provider: str, family: str | None, can: bool) -> None:
    """S-04, S-12: a command without conversations is never asked to go on with one."""
    assert sessions.provider_can_resume(provider, family) is can
