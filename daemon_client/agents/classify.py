"""From the raw text of an agent's failure to a reason code. The server's retry and resume rules key on these codes."""

from __future__ import annotations

import re
from typing import Final

from daemon_client import protocol

# Causes stand near the start; a whole transcript as an error text must not cost seconds.
MAX_TEXT: Final = 32 * 1024


def _words(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives))


def _status(*codes: str) -> str:
    # A status stands alone: not part of a number, an id ("e526d"), a version ("1.500"), or a place ("main.js:500:12").
    return rf"(?<![\w.])(?:{'|'.join(codes)})(?!\w|\.\d|:\d)"


# The order is part of the meaning: "400 … prompt is too long" is an overflow, "402 … limit" no rate limit.
_RULES: Final = (
    (
        protocol.REASON_CONTEXT_OVERFLOW,
        _words(
            r"context[ _-]?length",
            r"context window",
            r"model_context_window_exceeded",
            r"prompt[ _]is[ _]too[ _]long",
            r"prompt_too_long",
            r"maximum context",
            r"input is too long",
            r"too many (?:input )?tokens",
            r"exceeds? .{0,40}\btoken.{0,20}limit",
            r"token limit (?:exceeded|reached)",
        ),
    ),
    (
        protocol.REASON_MISSING_CONFIG,
        _words(
            r"no api key (?:was )?(?:found|configured|provided)",
            r"(?:missing|unset) (?:api key|environment variable|configuration)",
            r"api key (?:is )?(?:missing|not set|not configured|required)",
            r"config(?:uration)? file .{0,60}not found",
            r"no (?:model )?provider (?:is )?configured",
            r"cannot be used with root/sudo",
            r"is_sandbox",
        ),
    ),
    (
        protocol.REASON_PROVIDER_AUTH,
        _words(
            _status("401", "403"),
            r"authentication[_ ]error",
            r"permission_error",
            r"\bunauthori[sz]ed\b",
            r"\bforbidden\b",
            r"invalid (?:api|x-api)[ -]key",
            r"could not resolve authentication method",
            r"please run /?login",
            r"not logged in",
            r"oauth token (?:has )?(?:expired|been revoked)",
            r"(?:token|session|credentials?) (?:has |have )?expired",
            r"log ?in again",
        ),
    ),
    (
        protocol.REASON_PROVIDER_QUOTA,
        _words(
            _status("402"),
            r"billing_error",
            r"insufficient[_ ](?:quota|balance|funds|credits?)",
            r"balance is too low",
            r"usage limit",
            r"quota (?:exceeded|exhausted)",
            r"exceeded your .{0,30}quota",
            r"out of credits?",
            r"credit balance",
            r"payment required",
        ),
    ),
    (
        protocol.REASON_API_INVALID_REQUEST,
        _words(
            r"invalid_request_error",
            rf"{_status('400')}.{{0,80}}invalid request",
            r"image exceeds .{0,40}(?:size|dimension|mb)",
            r"could not process image",
            r"messages?\.\d+.{0,60}(?:must be non-empty|must have non-empty|empty content)",
        ),
    ),
    (
        protocol.REASON_PROVIDER_CAPACITY,
        _words(
            _status("429", "529"),
            r"rate[ _-]?limit",
            r"too many requests",
            r"overloaded",
            r"at capacity",
        ),
    ),
    (
        protocol.REASON_PROVIDER_SERVER,
        _words(
            _status(r"5(?:0[0-9]|2[0-8])"),
            r"internal server error",
            r"bad gateway",
            r"service unavailable",
            r"gateway time-?out",
            r"server[ _]error",
            r"server-side (?:issue|error)",
        ),
    ),
    (
        protocol.REASON_PROVIDER_NETWORK,
        _words(
            r"stream (?:was )?disconnected",
            r"^opencode stream ended",
            r"connection (?:to .{1,40} )?(?:was )?(?:closed|refused|reset|lost|error|aborted)",
            r"closed mid-response",
            r"econn(?:reset|refused|aborted)",
            r"etimedout",
            r"enotfound",
            r"eai_again",
            r"epipe\b",
            r"socket hang ?up",
            r"dial tcp",
            r"\bdns\b",
            r"name or service not known",
            r"temporary failure in name resolution",
            r"could not resolve host",
            r"network (?:is )?(?:error|unreachable|down|failure)",
            r"unable to connect",
            r"fetch failed",
            r"i/o timeout",
            r"deadline exceeded",
            r"connection timed out",
            r"request timed out",
            r"tls handshake",
        ),
    ),
    (
        protocol.REASON_MODEL_UNAVAILABLE,
        _words(
            r"model .{0,80}(?:not found|not supported|not available|does not exist|unavailable|may not exist)",
            r"unknown model",
            r"invalid model",
            r"no such model",
            r"not_found_error.{0,40}model",
            r"do not have access to .{0,40}model",
        ),
    ),
    (
        protocol.REASON_EMPTY_OUTPUT,
        _words(
            r"empty (?:output|response)",
            r"no (?:parseable|parsable) output",
            r"unparseable",
            r"could not parse .{0,40}output",
            r"without (?:a|any) (?:result|output)",
            r"single line of more than",
        ),
    ),
    (protocol.REASON_AGENT_TIMEOUT, _words(r"timed out after")),
    (
        protocol.REASON_MISSING_EXECUTABLE,
        _words(
            r"executable (?:file )?not found",
            r"no such executable",
            r"command not found",
            r"exec format error",
            r"cannot execute",
            r"not installed",
            r"no such file or directory: .{0,80}(?:bin|exe)\b",
        ),
    ),
    (
        protocol.REASON_VERSION_UNSUPPORTED,
        _words(
            r"(?:version|release) .{0,60}(?:is )?(?:too old|unsupported|not supported|below)",
            r"requires .{0,40}version",
            r"unsupported version",
        ),
    ),
    (
        protocol.REASON_PROCESS_FAILURE,
        _words(
            r"exit(?:ed)?(?: with)? (?:status|code)",
            r"ended by signal",
            r"signal: ",
            r"segmentation fault",
            r"\bpanic\b",
            r"core dumped",
            r"killed\b",
        ),
    ),
)


def classify(text: str) -> str:
    """The reason code of an error text; `agent_error.unknown` for an empty or unfamiliar one."""
    lowered = text[:MAX_TEXT].lower()
    return next(
        (reason for reason, pattern in _RULES if pattern.search(lowered)),
        protocol.REASON_UNKNOWN,
    )


def classify_exit(code: int, text: str) -> str:
    """The reason of a process that ended badly: what its text says, else that the process failed."""
    if code in (126, 127):
        return protocol.REASON_MISSING_EXECUTABLE
    reason = classify(text)
    return protocol.REASON_PROCESS_FAILURE if reason == protocol.REASON_UNKNOWN else reason


def describe_exit(code: int) -> str:
    """One sentence about an exit code, for people."""
    return f"the agent was ended by signal {-code}" if code < 0 else f"the agent exited with code {code}"
