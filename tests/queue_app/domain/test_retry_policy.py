"""Retries as a table: reason x attempt x budget x kind x poison."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from queue_app.domain import backoff
from queue_app.domain.failure_reasons import REASONS, RetryRule
from queue_app.domain.retry_policy import Facts, No, Retry, decide
from queue_app.domain.states import Status

ISSUE = Facts(reason="timeout", attempt=1, max_attempts=2, has_link=True)


def expected(facts: Facts) -> str:
    """The rule in the words of the checklist, apart from the code under test."""
    rule = REASONS[facts.reason].retry
    if rule is RetryRule.NEVER or facts.autopilot or not facts.has_link or facts.max_attempts <= 1:
        return "no"
    if rule is RetryRule.LADDER:
        steps = {1: "at once", 2: "after 5 s"}
        return steps.get(facts.attempt, "no") if facts.attempt < max(3, facts.max_attempts) else "no"
    if facts.attempt >= facts.max_attempts:
        return "no"
    if rule is RetryRule.WHEN_HEALTHY:
        return "after 1 s"
    if rule is RetryRule.IF_OPTED_IN:
        return "later" if facts.retry_rate_limits else "no"
    return "at once"


GRID = [
    Facts(
        reason=reason,
        attempt=attempt,
        max_attempts=budget,
        has_link=link,
        autopilot=autopilot,
        poisoned=poisoned,
        retry_rate_limits=opted,
    )
    for reason, attempt, budget, (link, autopilot), poisoned, opted in itertools.product(
        sorted(REASONS),
        (1, 2, 3),
        (0, 1, 2, 3),
        ((True, False), (False, False), (False, True), (True, True)),
        (False, True),
        (False, True),
    )
]


def test_the_whole_table() -> None:
    """R-04, R-05, R-06, R-07, R-08, R-09, R-10, R-11, R-12, R-13: every class on every attempt, budget and kind."""
    for facts in GRID:
        decision = decide(facts)
        wanted = expected(facts)
        if wanted == "no":
            assert isinstance(decision, No), facts
            assert decision.because.startswith("no, because ")
            continue
        assert isinstance(decision, Retry), facts
        assert decision.fresh_session == facts.poisoned
        told = {
            "at once": (Status.QUEUED, 0.0),
            "after 1 s": (Status.DEFERRED, 1.0),
            "after 5 s": (Status.DEFERRED, 5.0),
        }
        if wanted in told:
            assert (decision.status, decision.delay) == told[wanted], facts


def test_the_default_budget_is_one_retry() -> None:
    """R-10: two attempts, no third."""
    assert isinstance(decide(ISSUE), Retry)
    assert isinstance(decide(replace(ISSUE, attempt=2)), No)


def test_the_network_ladder_has_three_steps_and_nothing_raises_a_budget_of_one() -> None:
    """R-11, R-12: at once, after 5 s, no fourth; switched off with one attempt."""
    network = replace(ISSUE, reason="agent_error.provider_network")
    steps = [decide(replace(network, attempt=attempt)) for attempt in (1, 2, 3)]
    assert [step.delay if isinstance(step, Retry) else None for step in steps] == [0.0, 5.0, None]
    assert all(step.max_attempts == 3 for step in steps if isinstance(step, Retry))
    assert isinstance(decide(replace(network, max_attempts=1)), No)


def test_an_opted_in_rate_limit_waits_longer_and_longer() -> None:
    """D9: 429 only on the agent's word, with the campaigns' formula."""
    limited = replace(
        ISSUE, reason="agent_error.provider_capacity_or_rate_limit", max_attempts=9, retry_rate_limits=True
    )
    waits = [decide(replace(limited, attempt=attempt, jitter=0.5)) for attempt in (1, 2, 3)]
    assert [wait.delay if isinstance(wait, Retry) else None for wait in waits] == [1.5, 3.0, 6.0]


@pytest.mark.parametrize(("attempt", "full"), [(1, 2.0), (2, 4.0), (6, 64.0), (7, 120.0), (500, 120.0)])
def test_the_backoff_formula(attempt: int, full: float) -> None:
    """Half of the wait is certain, half is chance; base 2 s, cap 120 s."""
    assert backoff.delay(attempt, 0.0) == full / 2
    assert full / 2 <= backoff.delay(attempt, 0.999) < full


def test_the_rationale_tells_rule_attempts_conversation_and_time() -> None:
    """R-02: an operator reads why and when without reading the code."""
    retry = decide(replace(ISSUE, reason="codex_semantic_inactivity", poisoned=True))
    assert isinstance(retry, Retry)
    for words in ("codex_semantic_inactivity", "attempt 1 of 2", "at once", "new conversation"):
        assert words in retry.rationale
    last = decide(replace(ISSUE, attempt=2))
    assert isinstance(last, No)
    assert last.because == "no, because attempt 2 of 2 was the last"
