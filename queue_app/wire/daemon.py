"""What daemons send. Every field is optional here; what a use case needs it asks for itself, by name."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

NO_TOKEN = uuid.UUID(int=0)
"""Stands for a token that cannot be one of ours, so that it never matches a row."""


class Empty(msgspec.Struct):
    """A body with nothing to say."""


class Fenced(msgspec.Struct):
    """A call about a task; `claim_token` names the delivery that makes it, if the daemon knows of tokens."""

    claim_token: str = ""

    @property
    def token(self) -> uuid.UUID | None:
        """The token, None when none was sent."""
        return token_of(self.claim_token)


def token_of(text: str | None) -> uuid.UUID | None:
    """A claim token as it came. One that is no UUID matches nothing, rather than counting as none."""
    text = (text or "").strip()
    if not text:
        return None
    try:
        return uuid.UUID(text)
    except ValueError:
        return NO_TOKEN


def ident_of(text: str) -> uuid.UUID | None:
    """An id as it came; None when it cannot be one of ours."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------------ machine and account


class RuntimeEntry(msgspec.Struct):
    """One agent CLI, or one command of a profile, that a machine offers."""

    name: str = ""
    type: str = ""
    version: str = ""
    status: str = ""
    profile_id: str = ""


class FailedProfile(msgspec.Struct):
    """A profile whose command the machine does not have."""

    profile_id: str = ""
    command_name: str = ""
    reason: str = ""


class Register(msgspec.Struct):
    """`POST /api/daemon/register`."""

    workspace_id: str = ""
    daemon_id: str = ""
    legacy_daemon_ids: list[str] = []
    device_name: str = ""
    cli_version: str = ""
    launched_by: str = ""
    runtimes: list[RuntimeEntry] = []
    failed_profiles: list[FailedProfile] = []


class Deregister(msgspec.Struct):
    """`POST /api/daemon/deregister`."""

    runtime_ids: list[str] = []
    offline_reasons: dict[str, Any] = {}


class HeldTask(msgspec.Struct):
    """A delivery that a daemon still holds: it runs, or its report waits in the outbox."""

    task_id: str = ""
    claim_token: str = ""


class Heartbeat(msgspec.Struct):
    """`POST /api/daemon/heartbeat` and the frame `daemon:heartbeat`.

    `active_tasks` None says nothing about tasks; an empty list says that none is held.
    """

    runtime_id: str = ""
    supports_batch_import: bool = False
    active_tasks: list[HeldTask] | None = None
    incarnation: str = ""
    seq: Int64 = 0
    slots: dict[str, Any] | None = None


class Claim(msgspec.Struct):
    """`POST /api/daemon/tasks/claim` and the RPC `tasks.claim`."""

    daemon_id: str = ""
    runtime_ids: list[str] = []
    max_tasks: Int32 = 0


# ------------------------------------------------------------------------------------------------------------ one task


class Wait(Fenced):
    """`POST …/wait-local-directory`."""

    reason: str = ""


class Progress(Fenced):
    """`POST …/progress`."""

    summary: str = ""
    step: Int32 = 0
    total: Int32 = 0


class Message(msgspec.Struct):
    """One piece of a transcript."""

    seq: Int32 = 0
    type: str = ""
    tool: str = ""
    content: str = ""
    input: Any = None
    output: str = ""


class Messages(Fenced):
    """`POST …/messages`."""

    messages: list[Message] = []


class Session(Fenced):
    """`POST …/session`."""

    session_id: str = ""
    work_dir: str = ""


class UsageLine(msgspec.Struct):
    """Tokens and cost of one provider and model."""

    provider: str = ""
    model: str = ""
    input_tokens: Int64 = 0
    output_tokens: Int64 = 0
    cache_read_tokens: Int64 = 0
    cache_write_tokens: Int64 = 0
    cost_usd_ticks: Int64 | None = None


class Usage(Fenced):
    """`POST …/usage`."""

    usage: list[UsageLine] = []


class Ending(Fenced):
    """What `complete` and `fail` share."""

    branch_name: str = ""
    session_id: str = ""
    work_dir: str = ""
    durable_work_dir: str = ""
    retired_session_id: str = ""
    session_rollout_missing: bool = False


class Complete(Ending):
    """`POST …/complete`."""

    output: Any = ""


class Fail(Ending):
    """`POST …/fail`."""

    error: Any = ""
    failure_reason: str = ""


class CancelAck(Fenced):
    """`POST …/cancel-ack`."""

    branch_name: str = ""
    durable_work_dir: str = ""
    error_message: str = ""
    failure_reason: str = ""


class IssueCheck(msgspec.Struct):
    """`POST …/issues/gc-check`."""

    issue_ids: list[str] = []


class SkillRefs(Fenced):
    """`POST …/skill-bundles/resolve`."""

    skills: list[dict[str, Any]] = []


def text_of(value: object) -> str:
    """Free text of a report: what is not a text is kept as its JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()
