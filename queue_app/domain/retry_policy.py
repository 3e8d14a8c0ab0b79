"""Whether a failure is tried again by itself, when, and how. Pure: facts in, a decision with its reasons out."""

from __future__ import annotations

from dataclasses import dataclass

from queue_app.domain import backoff, failure_reasons
from queue_app.domain.failure_reasons import RetryRule
from queue_app.domain.states import Status

LADDER_ATTEMPTS = 3


@dataclass(frozen=True)
class Facts:
    """What the decision depends on. `has_link`: an issue or a chat; waits are seconds, `jitter` is in [0, 1)."""

    reason: str
    attempt: int
    max_attempts: int
    has_link: bool
    autopilot: bool = False
    poisoned: bool = False
    retry_rate_limits: bool = False
    offline_wait: float = 1.0
    network_wait: float = 5.0
    jitter: float = 0.0


@dataclass(frozen=True)
class Retry:
    """Try again: `status` of the new row, seconds until it is due, whether its conversation starts afresh."""

    status: Status
    delay: float
    fresh_session: bool
    max_attempts: int
    rationale: str


@dataclass(frozen=True)
class No:
    """Do not try again. `because` is one sentence for people."""

    because: str


Decision = Retry | No


def ceiling(reason: str, max_attempts: int) -> int:
    """How many attempts the chain may have. A budget of one switches retries off and nothing raises it."""
    if max_attempts <= 1:
        return max_attempts
    if failure_reasons.of(reason).retry is RetryRule.LADDER:
        return max(max_attempts, LADDER_ATTEMPTS)
    return max_attempts


def _refusal(facts: Facts) -> str | None:
    rule = failure_reasons.of(facts.reason).retry
    most = ceiling(facts.reason, facts.max_attempts)
    if rule is RetryRule.NEVER:
        return f"{facts.reason} is not retried by itself"
    if facts.autopilot:
        return "the schedule of its autopilot owns the next run"
    if not facts.has_link:
        return "only work on an issue or a chat is retried"
    if rule is RetryRule.IF_OPTED_IN and not facts.retry_rate_limits:
        return "the agent does not retry rate limits"
    if facts.attempt >= most:
        return f"attempt {facts.attempt} of {most} was the last"
    return None


def _when(facts: Facts) -> tuple[Status, float, str]:
    rule = failure_reasons.of(facts.reason).retry
    if rule is RetryRule.WHEN_HEALTHY:
        return Status.DEFERRED, facts.offline_wait, "when the runtime is healthy again"
    if rule is RetryRule.IF_OPTED_IN:
        wait = backoff.delay(facts.attempt, facts.jitter)
        return Status.DEFERRED, wait, f"in {wait:.1f} s"
    if rule is RetryRule.LADDER and facts.attempt >= LADDER_ATTEMPTS - 1:
        return Status.DEFERRED, facts.network_wait, f"in {facts.network_wait:g} s"
    return Status.QUEUED, 0.0, "at once"


def decide(facts: Facts) -> Decision:
    """The decision for one failed attempt."""
    refusal = _refusal(facts)
    if refusal is not None:
        return No(f"no, because {refusal}")
    status, delay, when = _when(facts)
    most = ceiling(facts.reason, facts.max_attempts)
    conversation = "with a new conversation" if facts.poisoned else "with the same conversation if it can go on"
    rule = failure_reasons.of(facts.reason).retry
    used = f"attempt {facts.attempt} of {most} is used"
    text = f"{facts.reason} is retried {rule}; {used}, the next runs {when} {conversation}"
    return Retry(status, delay, facts.poisoned, most, text)
