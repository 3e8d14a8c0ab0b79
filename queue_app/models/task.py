"""The queue itself: one row is one attempt of one agent at one piece of work on one runtime."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from queue_app.domain.states import ACTIVE, PENDING_SLOT, TERMINAL, Kind, Status

from .agents import Agent, AgentRuntime
from .base import Row
from .tenancy import Workspace
from .work import Issue

_ACTIVE = sorted(ACTIVE)
_TERMINAL = sorted(TERMINAL)


def _uuids() -> ArrayField:  # type: ignore[type-arg]
    return ArrayField(models.UUIDField(), default=list, blank=True)


class AgentTask(Row):
    """A row of `agent_task_queue`. Status and every carried column change only in `queue_app.transitions`.

    References to comments, other tasks, chats and autopilots are plain ids: deleting those must not edit a row behind
    the back of its events.
    """

    from_status: str | None
    """Only on rows that a transition returned."""

    created_at = models.DateTimeField(db_default=Now())
    workspace = models.ForeignKey(Workspace, models.CASCADE, db_index=False)
    agent = models.ForeignKey(Agent, models.CASCADE, related_name="tasks", db_index=False)
    runtime = models.ForeignKey(
        AgentRuntime, models.PROTECT, null=True, blank=True, related_name="tasks", db_index=False
    )
    issue = models.ForeignKey(Issue, models.CASCADE, null=True, blank=True, related_name="tasks", db_index=False)
    chat_session_id = models.UUIDField(null=True, blank=True)
    autopilot_id = models.UUIDField(null=True, blank=True)
    autopilot_run_id = models.UUIDField(null=True, blank=True)
    kind = models.CharField(max_length=16, choices=[(k.value, k.value) for k in Kind])
    serial_key = models.TextField(null=True, blank=True)
    status = models.CharField(max_length=32, choices=[(s.value, s.value) for s in Status], default=Status.QUEUED)
    priority = models.SmallIntegerField(default=0)
    base_priority = models.SmallIntegerField(default=0)
    attempt = models.SmallIntegerField(default=1)
    max_attempts = models.SmallIntegerField(default=2)

    fire_at = models.DateTimeField(null=True, blank=True)
    dispatched_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    prepare_lease_expires_at = models.DateTimeField(null=True, blank=True)

    claim_token = models.UUIDField(null=True, blank=True)
    deliveries = models.SmallIntegerField(db_default=0)
    lease_extensions = models.IntegerField(db_default=0)
    stop_pending_since = models.DateTimeField(null=True, blank=True)
    stopped_at = models.DateTimeField(null=True, blank=True)
    event_seq = models.IntegerField(db_default=0)
    event_hash = models.BinaryField(null=True, blank=True)

    wait_reason = models.TextField(null=True, blank=True)
    failure_reason = models.TextField(null=True, blank=True)
    not_retried_because = models.TextField(null=True, blank=True)
    error = models.TextField(null=True, blank=True)
    result = models.JSONField(null=True, blank=True)
    context = models.JSONField(default=dict, blank=True)

    session_id = models.TextField(null=True, blank=True)
    retired_session_id = models.TextField(null=True, blank=True)
    session_rollout_missing = models.BooleanField(db_default=False)
    work_dir = models.TextField(null=True, blank=True)
    durable_work_dir = models.TextField(null=True, blank=True)
    branch_name = models.TextField(null=True, blank=True)
    force_fresh_session = models.BooleanField(db_default=False)

    trigger_comment_id = models.UUIDField(null=True, blank=True)
    coalesced_comment_ids = _uuids()
    delivered_comment_ids = _uuids()
    trigger_summary = models.TextField(null=True, blank=True)
    handoff_note = models.TextField(null=True, blank=True)

    parent_task_id = models.UUIDField(null=True, blank=True)
    retry_of_task_id = models.UUIDField(null=True, blank=True)
    rerun_of_task_id = models.UUIDField(null=True, blank=True)
    escalation_for_task_id = models.UUIDField(null=True, blank=True)
    delegated_from_task_id = models.UUIDField(null=True, blank=True)

    is_leader_task = models.BooleanField(db_default=False)
    squad_id = models.UUIDField(null=True, blank=True)
    initiator_user_id = models.UUIDField(null=True, blank=True)
    originator_user_id = models.UUIDField(null=True, blank=True)
    accountable_user_id = models.UUIDField(null=True, blank=True)
    originator_source = models.TextField(null=True, blank=True)
    trigger_evidence_kind = models.TextField(null=True, blank=True)
    trigger_evidence_ref_id = models.UUIDField(null=True, blank=True)
    rule_version_id = models.UUIDField(null=True, blank=True)
    runtime_mcp_overlay = models.JSONField(null=True, blank=True)
    runtime_connected_apps = models.JSONField(null=True, blank=True)
    chat_input_task_id = models.UUIDField(null=True, blank=True)
    chat_finalize_deferred_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "agent_task_queue"
        indexes: ClassVar = [
            models.Index(
                "runtime",
                "agent",
                F("priority").desc(),
                "created_at",
                "id",
                name="task_claim",
                condition=Q(status=Status.QUEUED),
            ),
            models.Index("created_at", name="task_queued_age", condition=Q(status=Status.QUEUED)),
            models.Index("runtime", "fire_at", name="task_deferred", condition=Q(status=Status.DEFERRED)),
            models.Index("runtime", "status", name="task_active_runtime", condition=Q(status__in=_ACTIVE)),
            models.Index("runtime", "agent", name="task_stop_pending", condition=Q(stop_pending_since__isnull=False)),
            models.Index("completed_at", name="task_terminal_age", condition=Q(status__in=_TERMINAL)),
            models.Index("issue", "created_at", name="task_issue", condition=Q(issue__isnull=False)),
            models.Index("agent", F("created_at").desc(), name="task_agent_recent"),
            models.Index("workspace", F("created_at").desc(), name="task_workspace_recent"),
            models.Index("parent_task_id", name="task_parent", condition=Q(parent_task_id__isnull=False)),
            models.Index(
                "escalation_for_task_id", name="task_escalation", condition=Q(escalation_for_task_id__isnull=False)
            ),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["agent", "serial_key"], condition=Q(status__in=_ACTIVE), name="task_active"
            ),
            models.UniqueConstraint(
                fields=["issue", "agent"],
                condition=Q(status__in=sorted(PENDING_SLOT), issue__isnull=False),
                name="task_pending_slot",
            ),
            models.UniqueConstraint(
                fields=["retry_of_task_id"], condition=Q(retry_of_task_id__isnull=False), name="task_one_retry"
            ),
            models.CheckConstraint(condition=Q(status__in=sorted(Status)), name="task_status_check"),
            models.CheckConstraint(condition=Q(kind__in=sorted(Kind)), name="task_kind_check"),
            models.CheckConstraint(
                condition=Q(priority__gte=0, priority__lte=4, base_priority__gte=0, base_priority__lte=4),
                name="task_priority_check",
            ),
            models.CheckConstraint(condition=Q(attempt__gte=1, deliveries__gte=0), name="task_attempt_check"),
            models.CheckConstraint(
                condition=(
                    (Q(status__in=_TERMINAL) & Q(completed_at__isnull=False))
                    | (~Q(status__in=_TERMINAL) & Q(completed_at__isnull=True))
                ),
                name="task_terminal_has_end",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=_ACTIVE)
                | Q(runtime__isnull=False, claim_token__isnull=False, dispatched_at__isnull=False),
                name="task_active_has_owner",
            ),
            models.CheckConstraint(
                condition=~Q(status=Status.RUNNING) | Q(started_at__isnull=False), name="task_running_has_start"
            ),
            models.CheckConstraint(
                condition=~Q(status__in=[Status.DISPATCHED, Status.WAITING_LOCAL_DIRECTORY])
                | Q(started_at__isnull=True, prepare_lease_expires_at__isnull=False),
                name="task_preparing_has_lease",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=[Status.QUEUED, Status.DEFERRED])
                | Q(
                    runtime__isnull=False,
                    claim_token__isnull=True,
                    started_at__isnull=True,
                    prepare_lease_expires_at__isnull=True,
                ),
                name="task_waiting_is_unclaimed",
            ),
            models.CheckConstraint(
                condition=~Q(status=Status.DEFERRED) | Q(fire_at__isnull=False), name="task_deferred_has_time"
            ),
            models.CheckConstraint(
                condition=~Q(status=Status.FAILED) | Q(failure_reason__isnull=False), name="task_failed_has_reason"
            ),
            models.CheckConstraint(
                # A comparison with null is null, and a CHECK lets that pass: the presence is asked for by itself.
                condition=Q(originator_user_id__isnull=True)
                | Q(accountable_user_id__isnull=False, accountable_user_id=F("originator_user_id")),
                name="task_accountable_is_originator",
            ),
            models.CheckConstraint(
                condition=(
                    Q(kind__in=[Kind.ISSUE, Kind.COMMENT], issue__isnull=False)
                    | Q(kind=Kind.CHAT, chat_session_id__isnull=False, issue__isnull=True)
                    | Q(kind=Kind.AUTOPILOT, autopilot_run_id__isnull=False, issue__isnull=True)
                    | Q(kind=Kind.QUICK_CREATE, chat_session_id__isnull=True, autopilot_run_id__isnull=True)
                ),
                name="task_kind_has_its_link",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} task {str(self.id)[-12:]} ({self.status})"
