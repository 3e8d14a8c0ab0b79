"""Answers of the issue API, as the command line and people read them."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from queue_app.models import (
    Agent,
    AgentRuntime,
    AgentTask,
    Comment,
    Issue,
    Member,
    RuntimeProfile,
    TaskMessage,
    Workspace,
)
from queue_app.services import retry_story
from queue_app.services.enqueue import Enqueued

_STATUS_CATEGORIES = {
    "backlog": "backlog",
    "todo": "unstarted",
    "in_progress": "started",
    "in_review": "started",
    "blocked": "started",
    "done": "completed",
    "cancelled": "cancelled",
}
SUMMARY = 280
"""Characters of a comment's text that a summary keeps."""


class IssueOut(serializers.ModelSerializer[Issue]):
    """One issue."""

    identifier = serializers.CharField(read_only=True)
    workspace_id = serializers.UUIDField(read_only=True)
    parent_issue_id = serializers.UUIDField(read_only=True, allow_null=True)
    assignee_type = serializers.SerializerMethodField()
    project_id = serializers.SerializerMethodField()
    status_category = serializers.SerializerMethodField()
    metadata = serializers.DictField(read_only=True)
    properties = serializers.SerializerMethodField()
    labels = serializers.SerializerMethodField()
    attachments = serializers.SerializerMethodField()

    class Meta:
        model = Issue
        fields: ClassVar = [
            "id",
            "workspace_id",
            "number",
            "identifier",
            "title",
            "description",
            "status",
            "status_category",
            "priority",
            "assignee_type",
            "assignee_id",
            "creator_type",
            "creator_id",
            "parent_issue_id",
            "project_id",
            "position",
            "stage",
            "start_date",
            "due_date",
            "origin_type",
            "origin_id",
            "created_at",
            "updated_at",
            "first_executed_at",
            "metadata",
            "properties",
            "labels",
            "attachments",
        ]

    def get_assignee_type(self, issue: Issue) -> str | None:
        return issue.assignee_type or None

    def get_project_id(self, issue: Issue) -> str | None:
        return None

    def get_status_category(self, issue: Issue) -> str:
        return _STATUS_CATEGORIES.get(issue.status, "started")

    def get_properties(self, issue: Issue) -> dict[str, Any]:
        return {}

    def get_labels(self, issue: Issue) -> list[str]:
        return []

    def get_attachments(self, issue: Issue) -> list[str]:
        return []


class RunOut(serializers.Serializer[Any]):
    """What became of the work that a change asked for: queued, coalesced into a waiting task, blocked by a reason."""

    outcome = serializers.CharField()
    task_id = serializers.UUIDField(allow_null=True)
    reason = serializers.CharField(allow_null=True)


def run_of(run: Enqueued | None) -> dict[str, str | None] | None:
    """The `run` of an answer; None when the change asked for no work."""
    if run is None:
        return None
    return {"outcome": run.outcome, "task_id": str(run.task.id) if run.task else None, "reason": run.reason}


class IssueWritten(IssueOut):
    """One issue after a change."""

    run = RunOut(allow_null=True)

    class Meta(IssueOut.Meta):
        fields: ClassVar = [*IssueOut.Meta.fields, "run"]


class IssuePage(serializers.Serializer[Any]):
    """A page of issues and how many match in all."""

    issues = IssueOut(many=True)
    total = serializers.IntegerField()


class IssueList(serializers.Serializer[Any]):
    """Issues without a page."""

    issues = IssueOut(many=True)


class Hit(serializers.Serializer[Any]):
    """One issue that a search found, and where."""

    id = serializers.UUIDField()
    identifier = serializers.CharField()
    title = serializers.CharField()
    status = serializers.CharField()
    match_source = serializers.CharField()
    matched_snippet = serializers.CharField(required=False)


class Hits(serializers.Serializer[Any]):
    """What a search found."""

    issues = Hit(many=True)


class MetadataOut(serializers.Serializer[Any]):
    """The metadata of an issue."""

    metadata = serializers.DictField()


class CommentOut(serializers.ModelSerializer[Comment]):
    """One comment; a root has the facts of its thread too. Needs `facts` (by root id) and `summary` in the context."""

    issue_id = serializers.UUIDField(read_only=True)
    parent_id = serializers.UUIDField(read_only=True, allow_null=True)
    attachments = serializers.SerializerMethodField()
    reply_count = serializers.IntegerField(read_only=True, required=False)
    last_activity_at = serializers.DateTimeField(read_only=True, required=False)
    thread_resolved = serializers.BooleanField(read_only=True, required=False)
    folded_count = serializers.IntegerField(read_only=True, required=False)

    class Meta:
        model = Comment
        fields: ClassVar = [
            "id",
            "issue_id",
            "parent_id",
            "author_type",
            "author_id",
            "content",
            "type",
            "source_task_id",
            "created_at",
            "updated_at",
            "resolved_at",
            "attachments",
            "reply_count",
            "last_activity_at",
            "thread_resolved",
            "folded_count",
        ]

    def get_attachments(self, comment: Comment) -> list[str]:
        return []

    def to_representation(self, instance: Comment) -> dict[str, Any]:
        data = super().to_representation(instance)
        if self.context.get("summary") and len(data["content"]) > SUMMARY:
            data["content"] = data["content"][:SUMMARY].rstrip() + "…"
            data["content_truncated"] = True
        facts = self.context.get("facts", {}).get(instance.id)
        if facts is not None:
            data["reply_count"] = facts.reply_count
            data["last_activity_at"] = serializers.DateTimeField().to_representation(facts.last_activity_at)
            data["thread_resolved"] = instance.resolved_at is not None
            data["folded_count"] = facts.folded_count
        return data


class AgentRunOut(RunOut):
    """What became of a comment for one agent; `why` is mention, thread or assignee."""

    agent_id = serializers.UUIDField()
    why = serializers.CharField()


class CommentWritten(CommentOut):
    """One comment after it was added or changed: `run` is the first of `runs`."""

    run = RunOut(allow_null=True)
    runs = AgentRunOut(many=True)

    class Meta(CommentOut.Meta):
        fields: ClassVar = [*CommentOut.Meta.fields, "run", "runs"]


class TaskOut(serializers.ModelSerializer[AgentTask]):
    """One attempt, without its prompt, its tokens or the paths of the machine it ran on."""

    workspace_id = serializers.UUIDField(read_only=True)
    agent_id = serializers.UUIDField(read_only=True)
    agent_name = serializers.CharField(source="agent.name", read_only=True)
    status = serializers.CharField(read_only=True)
    kind = serializers.CharField(read_only=True)
    runtime_id = serializers.UUIDField(read_only=True, allow_null=True)
    issue_id = serializers.UUIDField(read_only=True, allow_null=True)

    class Meta:
        model = AgentTask
        fields: ClassVar = [
            "id",
            "workspace_id",
            "agent_id",
            "agent_name",
            "runtime_id",
            "issue_id",
            "kind",
            "status",
            "priority",
            "attempt",
            "max_attempts",
            "deliveries",
            "created_at",
            "fire_at",
            "dispatched_at",
            "started_at",
            "completed_at",
            "stop_pending_since",
            "stopped_at",
            "wait_reason",
            "failure_reason",
            "not_retried_because",
            "error",
            "branch_name",
            "trigger_comment_id",
            "parent_task_id",
            "retry_of_task_id",
            "rerun_of_task_id",
        ]


class ProgressOut(serializers.Serializer[Any]):
    """The newest progress line of a run."""

    summary = serializers.CharField()
    step = serializers.IntegerField()
    total = serializers.IntegerField()
    updated_at = serializers.DateTimeField()


class RetryOut(serializers.Serializer[Any]):
    """What was decided after a failure: the rule, the attempts used, the conversation, the next attempt."""

    rule = serializers.CharField()
    attempt = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    conversation = serializers.CharField()
    next_task_id = serializers.UUIDField(allow_null=True)
    next_at = serializers.DateTimeField(allow_null=True)
    text = serializers.CharField()


class TaskDetail(TaskOut):
    """One attempt with its result and progress, and, if it failed, whether and when it is tried again."""

    progress = serializers.SerializerMethodField()
    retry = serializers.SerializerMethodField()

    class Meta(TaskOut.Meta):
        fields: ClassVar = [*TaskOut.Meta.fields, "result", "progress", "retry"]

    @extend_schema_field(RetryOut(allow_null=True))
    def get_retry(self, task: AgentTask) -> Any:
        story = retry_story.of(task)
        return None if story is None else RetryOut(story).data

    @extend_schema_field(ProgressOut(allow_null=True))
    def get_progress(self, task: AgentTask) -> Any:
        progress = getattr(task, "progress", None)
        return None if progress is None else ProgressOut(progress).data


class MessageOut(serializers.ModelSerializer[TaskMessage]):
    """One piece of a run's transcript."""

    task_id = serializers.UUIDField(read_only=True)

    class Meta:
        model = TaskMessage
        fields: ClassVar = ["task_id", "seq", "type", "tool", "content", "input", "output", "created_at"]


class UsageOut(serializers.Serializer[Any]):
    """Tokens of all attempts for an issue."""

    total_input_tokens = serializers.IntegerField()
    total_output_tokens = serializers.IntegerField()
    total_cache_read_tokens = serializers.IntegerField()
    total_cache_write_tokens = serializers.IntegerField()
    task_count = serializers.IntegerField()


class AgentOut(serializers.ModelSerializer[Agent]):
    """One agent. The values of its environment and MCP configuration are secrets and never leave the server here."""

    workspace_id = serializers.UUIDField(read_only=True)
    runtime_id = serializers.UUIDField(read_only=True, allow_null=True)
    owner_id = serializers.UUIDField(read_only=True, allow_null=True)
    custom_env_keys = serializers.SerializerMethodField()
    has_mcp_config = serializers.SerializerMethodField()
    status = serializers.CharField(read_only=True)
    runtime_status = serializers.SerializerMethodField()

    class Meta:
        model = Agent
        fields: ClassVar = [
            "id",
            "workspace_id",
            "name",
            "status",
            "kind",
            "visibility",
            "runtime_id",
            "runtime_status",
            "owner_id",
            "max_concurrent_tasks",
            "instructions",
            "model",
            "thinking_level",
            "service_tier",
            "custom_args",
            "custom_env_keys",
            "has_mcp_config",
            "retry_rate_limits",
            "paused_at",
            "paused_until",
            "archived_at",
            "created_at",
            "updated_at",
        ]

    def get_custom_env_keys(self, agent: Agent) -> list[str]:
        return sorted(agent.custom_env)

    def get_has_mcp_config(self, agent: Agent) -> bool:
        return bool(agent.mcp_config)

    def get_runtime_status(self, agent: Agent) -> str | None:
        return agent.runtime.status if agent.runtime else None


class RuntimeOut(serializers.ModelSerializer[AgentRuntime]):
    """One runtime: a machine's daemon with one agent kind."""

    name = serializers.CharField(source="__str__", read_only=True)
    workspace_id = serializers.UUIDField(read_only=True)
    profile_id = serializers.UUIDField(read_only=True, allow_null=True)
    owner_id = serializers.UUIDField(read_only=True, allow_null=True)
    status = serializers.CharField(read_only=True)

    class Meta:
        model = AgentRuntime
        fields: ClassVar = [
            "id",
            "workspace_id",
            "name",
            "provider",
            "profile_id",
            "owner_id",
            "status",
            "last_seen_at",
            "device_info",
            "paused_at",
            "paused_until",
            "created_at",
        ]


class MemberOut(serializers.ModelSerializer[Member]):
    """A member of a workspace."""

    user_id = serializers.UUIDField(read_only=True)
    name = serializers.SerializerMethodField()
    email = serializers.CharField(source="user.email", read_only=True)

    class Meta:
        model = Member
        fields: ClassVar = ["id", "user_id", "name", "email", "role"]

    def get_name(self, member: Member) -> str:
        return member.user.get_full_name() or member.user.get_username()


class ProfileOut(serializers.ModelSerializer[RuntimeProfile]):
    """A runtime profile."""

    workspace_id = serializers.UUIDField(read_only=True)

    class Meta:
        model = RuntimeProfile
        fields: ClassVar = [
            "id",
            "workspace_id",
            "display_name",
            "protocol_family",
            "command_name",
            "description",
            "fixed_args",
            "visibility",
            "enabled",
            "created_at",
            "updated_at",
        ]


class WorkspaceOut(serializers.ModelSerializer[Workspace]):
    """A workspace with its repositories."""

    class Meta:
        model = Workspace
        fields: ClassVar = [
            "id",
            "name",
            "slug",
            "issue_prefix",
            "description",
            "context",
            "repos",
            "settings",
            "created_at",
            "updated_at",
        ]


class Refusal(serializers.Serializer[Any]):
    """Any 4xx."""

    error = serializers.CharField()
    code = serializers.CharField()
    field = serializers.CharField(required=False)
