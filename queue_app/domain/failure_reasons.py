"""Why a task failed, as a closed list, and what follows from each reason.

A reason is decided once, as early as possible: daemons send it, sweeps know it, and only a failure that comes without
one is read from its text (`normalise`). Everything later keys on the code and never looks at the text again, with one
exception that is a safety belt: a session may also be poisoned by what the text says (`domain.sessions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class RetryRule(StrEnum):
    """What the queue does by itself after a failure."""

    NEVER = "never"
    AT_ONCE = "at once"
    WHEN_HEALTHY = "when the runtime is healthy"
    LADDER = "at once, then after a short wait, three attempts in all"
    IF_OPTED_IN = "after a growing wait, if the agent opts in"


class AutopilotSync(StrEnum):
    """What the end means to the autopilot run behind a task."""

    FAIL_RUN = "fail the run"
    SKIP_RUN = "end the run as skipped"


@dataclass(frozen=True)
class Reason:
    """One reason with its decisions: retry, session, system comment, metric label, autopilot, hint for people.

    `label` is two or three words for lists, `comment` says whether a final failure is told on the issue, `hint` is what
    a person can do about it.
    """

    code: str
    retry: RetryRule
    session_reusable: bool
    comment: bool
    metric: str
    autopilot: AutopilotSync
    label: str
    hint: str


def _reason(
    code: str,
    label: str,
    hint: str,
    *,
    retry: RetryRule = RetryRule.NEVER,
    poison: bool = False,
    comment: bool = True,
    autopilot: AutopilotSync = AutopilotSync.FAIL_RUN,
) -> Reason:
    return Reason(code, retry, not poison, comment, code, autopilot, label, hint)


UNKNOWN: Final = "agent_error.unknown"
TIMEOUT: Final = "timeout"
RUNTIME_OFFLINE: Final = "runtime_offline"
RUNTIME_RECOVERY: Final = "runtime_recovery"
CONTEXT_OVERFLOW: Final = "agent_error.context_overflow"
PROVIDER_NETWORK: Final = "agent_error.provider_network"
RATE_LIMIT: Final = "agent_error.provider_capacity_or_rate_limit"
INVALID_REQUEST: Final = "api_invalid_request"
SKILL_BUNDLE: Final = "skill_bundle_unavailable"
CLI_TIMEOUT: Final = "runtime_cli_timeout"

_TABLE: Final = (
    _reason(
        "queued_expired",
        "waited too long",
        "No runtime took the task in time. Start its daemon or move the agent to another runtime, then rerun.",
        autopilot=AutopilotSync.SKIP_RUN,
    ),
    _reason(
        RUNTIME_OFFLINE,
        "machine gone",
        "The machine was silent past the grace. It is tried again when the machine returns; nothing to do before.",
        retry=RetryRule.WHEN_HEALTHY,
    ),
    _reason(
        "runtime_reconnect_timeout",
        "machine did not return",
        "Start the daemon on that machine or move the agent to another runtime, then rerun.",
    ),
    _reason(
        RUNTIME_RECOVERY,
        "daemon restarted",
        "The daemon restarted while the task ran. It is tried again by itself.",
        retry=RetryRule.AT_ONCE,
    ),
    _reason(
        TIMEOUT,
        "preparation timed out",
        "The task was taken but never got going. Look at the daemon's log if it happens again.",
        retry=RetryRule.AT_ONCE,
    ),
    _reason(
        "iteration_limit",
        "turn limit reached",
        "The agent used up its turns. Split the issue or raise the agent's limit, then rerun.",
        poison=True,
    ),
    _reason("agent_blocked", "agent is blocked", "Read the agent's last comment and answer what it asks for."),
    _reason(
        INVALID_REQUEST,
        "request refused",
        "The provider refused the conversation as invalid. Rerun: it starts with a new conversation.",
        poison=True,
    ),
    _reason(
        SKILL_BUNDLE,
        "skills not loaded",
        "The skill files could not be fetched. It is tried again by itself; check the skill if it stays.",
        retry=RetryRule.AT_ONCE,
    ),
    _reason(CLI_TIMEOUT, "agent CLI hangs", "The agent's command did not answer. Run it by hand on that machine."),
    _reason(
        "invalid_task_identity",
        "wrong identity",
        "The task no longer fits its agent, runtime or workspace. Assign the issue again.",
    ),
    _reason("issue_window_restricted", "issue closed to runs", "The issue may not be worked on now. Reopen it."),
    _reason(
        "local_directory_error",
        "directory unusable",
        "Check that the local directory exists, is writable and has no unsaved work, then rerun.",
    ),
    _reason("idle_watchdog", "no sign of life", "The agent produced nothing for too long and was stopped. Rerun it."),
    _reason(
        "cancelled",
        "stopped with its daemon",
        "The daemon was shut down while the task ran. Rerun it.",
        autopilot=AutopilotSync.SKIP_RUN,
    ),
    _reason(
        "codex_semantic_inactivity",
        "no progress",
        "The agent kept going without getting anywhere. It is tried again with a new conversation.",
        retry=RetryRule.AT_ONCE,
        poison=True,
    ),
    _reason(
        "codex_resume_oversized",
        "conversation too large",
        "The old conversation is too large to go on with. Rerun: it starts with a new one.",
        poison=True,
    ),
    _reason(
        "agent_fallback_message",
        "agent gave up",
        "The agent answered with a stock phrase instead of work. Rerun: it starts with a new conversation.",
        poison=True,
    ),
    _reason(
        "agent_error.provider_auth_or_access",
        "not logged in",
        "Log the agent's CLI in on that machine, or correct its key, then rerun.",
    ),
    _reason(
        "agent_error.provider_quota_limit",
        "quota used up",
        "The provider account has no quota left. Top it up or wait for the reset, then rerun.",
    ),
    _reason(
        RATE_LIMIT,
        "rate limited",
        "The provider is throttling. Rerun later, or let the agent retry rate limits by itself.",
        retry=RetryRule.IF_OPTED_IN,
    ),
    _reason(
        "agent_error.provider_server_error", "provider trouble", "The provider had an error of its own. Rerun later."
    ),
    _reason(
        PROVIDER_NETWORK,
        "network trouble",
        "The provider could not be reached. It is tried again by itself; check that machine's network if it stays.",
        retry=RetryRule.LADDER,
    ),
    _reason(
        "agent_error.process_failure",
        "agent crashed",
        "The agent's process ended badly. Read the end of its messages, then rerun.",
    ),
    _reason(
        "agent_error.empty_or_unparseable_output",
        "no usable output",
        "The agent said nothing that could be read. Check its version on that machine, then rerun.",
    ),
    _reason("agent_error.agent_timeout", "agent timed out", "The agent hit a time limit of its own. Rerun it."),
    _reason(
        CONTEXT_OVERFLOW,
        "context is full",
        "The conversation outgrew the model. Rerun: it starts with a new one; split the issue if it happens again.",
        poison=True,
    ),
    _reason(
        "agent_error.missing_config",
        "not configured",
        "A key or setting of the agent is missing on that machine. Add it, then rerun.",
    ),
    _reason(
        "agent_error.model_not_found_or_unavailable",
        "model unavailable",
        "The provider does not offer the agent's model. Choose another one, then rerun.",
    ),
    _reason(
        "agent_error.runtime_version_unsupported",
        "version too old",
        "Update the agent's CLI on that machine, then rerun.",
    ),
    _reason(
        "agent_error.runtime_missing_executable",
        "agent not installed",
        "Install the agent's CLI on that machine or correct the command, then rerun.",
    ),
    _reason(UNKNOWN, "unknown failure", "Read the error text and the agent's messages, then rerun."),
)

REASONS: Final[dict[str, Reason]] = {reason.code: reason for reason in _TABLE}

_COARSE: Final = frozenset({"", "agent_error", UNKNOWN})
"""What daemons send when they do not know; only these are read from the text."""


def _status(*codes: str) -> str:
    """A status code that stands alone: no part of a longer number, an id, a version or a place in a file."""
    return rf"(?<![\w.:]){'(?:' + '|'.join(codes) + ')'}(?![\w:]|\.\d)"


def _rule(code: str, *patterns: str) -> tuple[str, re.Pattern[str]]:
    return code, re.compile("|".join(patterns))


# First match wins, so the order is part of the meaning: a 400 about length is an overflow, a 402 about limits a quota.
_RULES: Final = (
    _rule(
        CONTEXT_OVERFLOW,
        r"context[ _-]length",
        r"context window",
        r"model_context_window_exceeded",
        r"prompt(?:_| is )too(?:_| )long",
        r"maximum context",
        r"\btokens?\b.{0,60}\blimit\b.{0,20}exceed",
        r"exceed.{0,60}\btoken.{0,20}\blimit",
    ),
    _rule(
        "agent_error.missing_config",
        r"no api[ _]key",
        r"api[ _]key (?:is )?(?:missing|not set|required|not configured)",
        r"missing (?:required )?(?:api[ _]key|configuration|environment variable)",
        r"no (?:model )?provider (?:is )?configured",
    ),
    _rule(
        "agent_error.provider_auth_or_access",
        _status("401", "403"),
        r"unauthori[sz]ed",
        r"\bforbidden\b",
        r"authentication[ _](?:error|failed)",
        r"could not resolve authentication method",
        r"invalid (?:x-)?api[ _-]key",
        r"permission_error",
        r"not logged in",
        r"(?:please )?(?:run )?/?login(?: again)? (?:first|to continue)",
        r"please run /login",
        r"(?:token|session|credentials?) (?:has |have |is )?(?:expired|been revoked|invalid)",
    ),
    _rule(
        "agent_error.provider_quota_limit",
        _status("402"),
        r"insufficient[ _](?:quota|balance|funds|credits?)",
        r"(?:usage|spending) limit",
        r"credit balance",
        r"out of credits?",
        r"quota",
        r"payment required",
        r"billing",
    ),
    _rule(INVALID_REQUEST, r"invalid_request_error"),
    _rule(RATE_LIMIT, _status("429", "529"), r"rate[ _-]?limit", r"too many requests", r"overloaded", r"at capacity"),
    _rule(
        "agent_error.provider_server_error",
        _status(r"5(?:0\d|2[0-8])"),
        r"internal server error",
        r"bad gateway",
        r"service unavailable",
        r"gateway time-?out",
        r"server[ _]error",
    ),
    _rule(
        PROVIDER_NETWORK,
        r"stream (?:was )?disconnected",
        r"^opencode stream ended",
        r"connection (?:was |has been )?(?:closed|refused|reset|lost|aborted|timed out)",
        r"connection error",
        r"mid-response",
        r"dial tcp",
        r"\bdns\b",
        r"name (?:or service not known|resolution)",
        r"could not resolve host",
        r"econn(?:reset|refused|aborted)|etimedout|enotfound|eai_again",
        r"socket hang ?up",
        r"network (?:is )?(?:unreachable|down|error)",
        r"fetch failed",
        r"i/o timeout",
        r"deadline exceeded",
        r"tls handshake",
    ),
    _rule(
        "agent_error.model_not_found_or_unavailable",
        r"model.{0,80}(?:not found|not supported|not available|does not exist|unavailable)",
        r"(?:unknown|invalid|no such) model",
    ),
    _rule(
        "agent_error.empty_or_unparseable_output",
        r"empty (?:output|response|result)",
        r"unparse?able",
        r"(?:could not|failed to|cannot) parse.{0,40}output",
        r"no parse?able output",
        r"without (?:a|any) (?:result|output)",
    ),
    _rule("agent_error.agent_timeout", r"timed out after"),
    _rule(
        "agent_error.runtime_missing_executable",
        r"executable (?:file )?not found",
        r"command not found",
        r"no such executable",
        r"exec format error",
        r"not installed",
    ),
    _rule(
        "agent_error.runtime_version_unsupported",
        r"version.{0,60}(?:too old|unsupported|not supported|below)",
        r"unsupported version",
        r"requires.{0,40}version",
    ),
    _rule(
        "agent_error.process_failure",
        r"exit(?:ed)? (?:with )?(?:status|code)",
        r"signal",
        r"panic",
        r"segmentation fault",
        r"core dumped",
        r"\bkilled\b",
    ),
)

_WITNESSES: Final = (
    # What daemons of older releases sent under a coarse reason, by the shape of their own texts.
    _rule(SKILL_BUNDLE, r"^skill[ _-]bundle", r"resolve skill bundles?"),
    _rule(CLI_TIMEOUT, r"openclaw.{0,120}(?:deadline exceeded|timed out)"),
)


def _first(rules: Iterable[tuple[str, re.Pattern[str]]], text: str) -> str | None:
    return next((code for code, pattern in rules if pattern.search(text)), None)


def classify(text: str) -> str:
    """The reason that a raw error text speaks of; `agent_error.unknown` for an empty or unfamiliar one."""
    lowered = text.lower().strip()
    return _first((*_WITNESSES, *_RULES), lowered) or UNKNOWN


def normalise(reason: str | None, error: str) -> str:
    """The code to store for what a daemon reported: always one of `REASONS`.

    A code of the list stands as it is. A coarse or missing one is read from the text. An unfamiliar one becomes
    `agent_error.unknown`, which is never retried.
    """
    given = (reason or "").strip()
    if given in _COARSE:
        return classify(error)
    return given if given in REASONS else UNKNOWN


def of(code: str | None) -> Reason:
    """The table's row for a stored code; an unfamiliar one (an old row) reads as unknown."""
    return REASONS.get(code or "", REASONS[UNKNOWN])
