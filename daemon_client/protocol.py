"""The wire between a daemon and a server: names, routes, codes and the shape of a claimed task.

Standard library only, because the server imports this module too. Nothing here does I/O. Where a constant is a duration
its unit is the second unless the name ends in `_MS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]

# --- task statuses -----------------------------------------------------------------------------------------------

DEFERRED: Final = "deferred"
QUEUED: Final = "queued"
DISPATCHED: Final = "dispatched"
WAITING_LOCAL_DIRECTORY: Final = "waiting_local_directory"
RUNNING: Final = "running"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

STATUSES: Final = (DEFERRED, QUEUED, DISPATCHED, WAITING_LOCAL_DIRECTORY, RUNNING, COMPLETED, FAILED, CANCELLED)
ACTIVE_STATUSES: Final = frozenset({DISPATCHED, WAITING_LOCAL_DIRECTORY, RUNNING})
TERMINAL_STATUSES: Final = frozenset({COMPLETED, FAILED, CANCELLED})

# --- socket frames -----------------------------------------------------------------------------------------------

FRAME_HEARTBEAT: Final = "daemon:heartbeat"
FRAME_HEARTBEAT_ACK: Final = "daemon:heartbeat_ack"
FRAME_TASK_AVAILABLE: Final = "daemon:task_available"
FRAME_PROFILES_CHANGED: Final = "daemon:runtime_profiles_changed"
FRAME_WORKSPACES_CHANGED: Final = "daemon:workspaces_changed"
FRAME_PENDING_WORK: Final = "daemon:pending_work"
FRAME_RPC_REQUEST: Final = "daemon:rpc_request"
FRAME_RPC_RESPONSE: Final = "daemon:rpc_response"

CAPABILITY_RPC: Final = "rpc-v1"
RPC_TASKS_CLAIM: Final = "tasks.claim"

# --- headers -----------------------------------------------------------------------------------------------------

HEADER_AUTHORIZATION: Final = "Authorization"
HEADER_CLIENT_PLATFORM: Final = "X-Client-Platform"
HEADER_CLIENT_VERSION: Final = "X-Client-Version"
HEADER_CLIENT_OS: Final = "X-Client-OS"
HEADER_CLIENT_CAPABILITIES: Final = "X-Client-Capabilities"
HEADER_WORKSPACE_ID: Final = "X-Workspace-ID"
HEADER_AGENT_ID: Final = "X-Agent-ID"
HEADER_TASK_ID: Final = "X-Task-ID"
HEADER_RETRYABLE: Final = "X-Multica-Retryable"
RETRYABLE_REPO_BUSY: Final = "repo-busy"

PLATFORM_DAEMON: Final = "daemon"
PLATFORM_CLI: Final = "cli"

# Only what this daemon implements: the server shapes its payloads by this list, so an empty promise loses data.
CLIENT_CAPABILITIES: Final = ("coalesced-comments-v1", CAPABILITY_RPC)

# --- credentials -------------------------------------------------------------------------------------------------

PREFIX_PERSONAL_TOKEN: Final = "mul_"
PREFIX_TASK_TOKEN: Final = "mat_"
PREFIX_DAEMON_TOKEN: Final = "mdt_"
PREFIX_CLOUD_TOKEN: Final = "mcn_"

# --- route templates (fill with str.format) ----------------------------------------------------------------------

ROUTE_ME: Final = "/api/me"
ROUTE_USER_WORKSPACES: Final = "/api/workspaces"
ROUTE_TOKEN_RENEW: Final = "/api/tokens/current/renew"
ROUTE_WORKSPACES: Final = "/api/daemon/workspaces"
ROUTE_REGISTER: Final = "/api/daemon/register"
ROUTE_DEREGISTER: Final = "/api/daemon/deregister"
ROUTE_HEARTBEAT: Final = "/api/daemon/heartbeat"
ROUTE_WS: Final = "/api/daemon/ws"
ROUTE_PROFILES: Final = "/api/daemon/workspaces/{workspace_id}/runtime-profiles"
ROUTE_REPOS: Final = "/api/daemon/workspaces/{workspace_id}/repos"
ROUTE_CLAIM: Final = "/api/daemon/tasks/claim"
ROUTE_CLAIM_ALIAS: Final = "/api/daemon/claim"
ROUTE_RUNTIME_CLAIM: Final = "/api/daemon/runtimes/{runtime_id}/tasks/claim"
ROUTE_PREPARE_LEASE: Final = "/api/daemon/runtimes/{runtime_id}/tasks/{task_id}/prepare-lease"
ROUTE_SKILL_BUNDLES: Final = "/api/daemon/runtimes/{runtime_id}/tasks/{task_id}/skill-bundles/resolve"
ROUTE_RECOVER_ORPHANS: Final = "/api/daemon/runtimes/{runtime_id}/recover-orphans"
ROUTE_MODELS_RESULT: Final = "/api/daemon/runtimes/{runtime_id}/models/{request_id}/result"
ROUTE_UPDATE_RESULT: Final = "/api/daemon/runtimes/{runtime_id}/update/{request_id}/result"
ROUTE_LOCAL_SKILLS_RESULT: Final = "/api/daemon/runtimes/{runtime_id}/local-skills/{request_id}/result"
ROUTE_LOCAL_SKILLS_IMPORT_RESULT: Final = "/api/daemon/runtimes/{runtime_id}/local-skills/import/{request_id}/result"
ROUTE_TASK_WAIT: Final = "/api/daemon/tasks/{task_id}/wait-local-directory"
ROUTE_TASK_START: Final = "/api/daemon/tasks/{task_id}/start"
ROUTE_TASK_STATUS: Final = "/api/daemon/tasks/{task_id}/status"
ROUTE_TASK_PROGRESS: Final = "/api/daemon/tasks/{task_id}/progress"
ROUTE_TASK_MESSAGES: Final = "/api/daemon/tasks/{task_id}/messages"
ROUTE_TASK_SESSION: Final = "/api/daemon/tasks/{task_id}/session"
ROUTE_TASK_USAGE: Final = "/api/daemon/tasks/{task_id}/usage"
ROUTE_TASK_COMPLETE: Final = "/api/daemon/tasks/{task_id}/complete"
ROUTE_TASK_FAIL: Final = "/api/daemon/tasks/{task_id}/fail"
ROUTE_TASK_CANCEL_ACK: Final = "/api/daemon/tasks/{task_id}/cancel-ack"
ROUTE_ISSUES_GC_CHECK: Final = "/api/daemon/workspaces/{workspace_id}/issues/gc-check"
ROUTE_ISSUE_GC_CHECK: Final = "/api/daemon/issues/{issue_id}/gc-check"
ROUTE_CHAT_GC_CHECK: Final = "/api/daemon/chat-sessions/{chat_session_id}/gc-check"
ROUTE_AUTOPILOT_RUN_GC_CHECK: Final = "/api/daemon/autopilot-runs/{autopilot_run_id}/gc-check"
ROUTE_TASK_GC_CHECK: Final = "/api/daemon/tasks/{task_id}/gc-check"

# --- texts and codes that are part of the protocol ---------------------------------------------------------------

TEXT_RUNTIME_NOT_FOUND: Final = "runtime not found"
TEXT_TASK_NOT_FOUND: Final = "task not found"
TEXT_ROUTER_NOT_FOUND: Final = "404 page not found"
TEXT_NOT_FOUND: Final = "not found"

# What a 409 says to a caller that holds an old delivery, or whose task is over. Final: nothing more is sent about it.
CODE_STALE_CLAIM: Final = "stale_claim"
CODE_START_CLAIM_REJECTED: Final = "start_claim_rejected"
CODE_TASK_ENDED: Final = "task_ended"
FINAL_CODES: Final = frozenset({CODE_STALE_CLAIM, CODE_START_CLAIM_REJECTED, CODE_TASK_ENDED})

# --- failure reasons ---------------------------------------------------------------------------------------------

REASON_TIMEOUT: Final = "timeout"
REASON_RUNTIME_OFFLINE: Final = "runtime_offline"
REASON_RUNTIME_RECOVERY: Final = "runtime_recovery"
REASON_RUNTIME_RECONNECT_TIMEOUT: Final = "runtime_reconnect_timeout"
REASON_QUEUED_EXPIRED: Final = "queued_expired"
REASON_SKILL_BUNDLE: Final = "skill_bundle_unavailable"
REASON_INVALID_IDENTITY: Final = "invalid_task_identity"
REASON_RUNTIME_CLI_TIMEOUT: Final = "runtime_cli_timeout"
REASON_LOCAL_DIRECTORY: Final = "local_directory_error"
REASON_IDLE_WATCHDOG: Final = "idle_watchdog"
REASON_CANCELLED: Final = "cancelled"
REASON_AGENT_BLOCKED: Final = "agent_blocked"
REASON_ITERATION_LIMIT: Final = "iteration_limit"
REASON_AGENT_FALLBACK: Final = "agent_fallback_message"
REASON_API_INVALID_REQUEST: Final = "api_invalid_request"
REASON_CODEX_RESUME_OVERSIZED: Final = "codex_resume_oversized"
REASON_CODEX_INACTIVITY: Final = "codex_semantic_inactivity"
REASON_CONTEXT_OVERFLOW: Final = "agent_error.context_overflow"
REASON_PROVIDER_NETWORK: Final = "agent_error.provider_network"
REASON_PROVIDER_AUTH: Final = "agent_error.provider_auth_or_access"
REASON_PROVIDER_QUOTA: Final = "agent_error.provider_quota_limit"
REASON_PROVIDER_CAPACITY: Final = "agent_error.provider_capacity_or_rate_limit"
REASON_PROVIDER_SERVER: Final = "agent_error.provider_server_error"
REASON_PROCESS_FAILURE: Final = "agent_error.process_failure"
REASON_EMPTY_OUTPUT: Final = "agent_error.empty_or_unparseable_output"
REASON_AGENT_TIMEOUT: Final = "agent_error.agent_timeout"
REASON_MISSING_CONFIG: Final = "agent_error.missing_config"
REASON_MODEL_UNAVAILABLE: Final = "agent_error.model_not_found_or_unavailable"
REASON_VERSION_UNSUPPORTED: Final = "agent_error.runtime_version_unsupported"
REASON_MISSING_EXECUTABLE: Final = "agent_error.runtime_missing_executable"
REASON_UNKNOWN: Final = "agent_error.unknown"

# --- limits and intervals ----------------------------------------------------------------------------------------

CLAIM_BATCH_CAP: Final = 32
HTTP_TIMEOUT: Final = 30.0
CLAIM_TIMEOUT: Final = 5.0
CLAIM_TIMEOUT_MS: Final = 5000
RPC_GRACE: Final = 2.0
UNCERTAIN_WINDOW: Final = CLAIM_TIMEOUT + RPC_GRACE
HEARTBEAT_INTERVAL: Final = 15.0
WS_HEARTBEAT_FRESHNESS: Final = 30.0
POLL_INTERVAL: Final = 30.0
STATUS_POLL_INTERVAL: Final = 5.0
PREPARE_LEASE_REFRESH: Final = 15.0
PREPARE_LEASE_TIMEOUT: Final = 10.0
PREPARE_BUDGET: Final = 300.0
MESSAGE_FLUSH_INTERVAL: Final = 0.5
MESSAGE_TIMEOUT: Final = 5.0
SESSION_TIMEOUT: Final = 5.0
TERMINAL_RETRY_DELAYS: Final = (4.0, 8.0, 16.0, 32.0, 64.0)
TOKEN_RENEWAL_INTERVAL: Final = 72 * 3600.0
TOKEN_RENEWAL_TIMEOUT: Final = 15.0
WORKSPACES_TIMEOUT: Final = 15.0
DEREGISTER_TIMEOUT: Final = 5.0
SHUTDOWN_DRAIN: Final = 30.0
WS_HANDSHAKE_TIMEOUT: Final = 10.0
WS_READ_DEADLINE: Final = 60.0
WS_WRITE_TIMEOUT: Final = 10.0
WS_READ_LIMIT: Final = 64 * 1024 * 1024
TOOL_OUTPUT_LIMIT: Final = 8192
ERROR_BODY_LIMIT: Final = 4096
DEFAULT_SLOTS: Final = 20
DEFAULT_HEALTH_PORT: Final = 19514

# --- shapes ------------------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    """A JSON value as text: null and absent are empty, a number is its decimal form, anything else is empty."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _dict(value: object) -> Json:
    return dict(value) if isinstance(value, Mapping) else {}


def _dicts(value: object) -> list[Json]:
    return [dict(item) for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


@dataclass(frozen=True)
class ClaimedTask:
    """One delivery of one task, as the claim answered it.

    `raw` is the decoded JSON object, unknown fields included. `claim_token` is empty with a server that sends none. The
    same task delivered twice gives two values that differ in `claim_token`; `key` tells deliveries apart.
    """

    id: str
    agent_id: str
    runtime_id: str
    workspace_id: str
    issue_id: str = ""
    auth_token: str = ""
    claim_token: str = ""
    agent: Json = field(default_factory=dict)
    repos: list[Json] = field(default_factory=list)
    prior_session_id: str = ""
    prior_work_dir: str = ""
    attempt: int = 0
    thread_name: str = ""
    chat_session_id: str = ""
    autopilot_run_id: str = ""
    quick_create_prompt: str = ""
    trigger_comment_id: str = ""
    trigger_thread_id: str = ""
    trigger_comment_content: str = ""
    trigger_author_type: str = ""
    trigger_author_name: str = ""
    raw: Json = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """Identity of this delivery: task id and claim token."""
        return self.id, self.claim_token

    @property
    def agent_name(self) -> str:
        return _text(self.agent.get("name"))

    @classmethod
    def decode(cls, obj: object) -> ClaimedTask:
        """Read a claimed task from decoded JSON; never raises for odd or missing fields.

        A task that is unusable (no id, no agent) still decodes, because only a task that is known can be failed.
        """
        raw = _dict(obj)
        texts = {name: _text(raw.get(name)) for name in _TEXT_FIELDS}
        return cls(
            **texts,
            agent=_dict(raw.get("agent")),
            repos=_dicts(raw.get("repos")),
            attempt=_number(raw.get("attempt")),
            raw=raw,
        )


_TEXT_FIELDS: Final = tuple(name for name, spec in ClaimedTask.__dataclass_fields__.items() if spec.type == "str")
