"""Bodies of the issue API. Unknown fields are ignored, wrong types refused with the field named, null clears."""

from __future__ import annotations

import re
from typing import Any

from rest_framework import serializers

from queue_app.api.work.fields import TITLE, Day, Flag, Ident, Mapping, Number, OneOf, Text, Texts, Whole
from queue_app.models.squads import VERDICTS
from queue_app.models.work import ISSUE_PRIORITIES, ISSUE_STATUSES

FAMILIES = ("plain", "claude")
_METADATA_BYTES = 65_536


class IssueFields(serializers.Serializer[Any]):
    """What people and agents may write of an issue."""

    title = Text(blank=False, max_length=TITLE)
    description = Text(required=False, allow_null=True)
    status = OneOf(ISSUE_STATUSES, blank=False, required=False)
    priority = OneOf(ISSUE_PRIORITIES, blank=False, required=False, allow_null=True)
    assignee_type = OneOf(("agent", "member", "squad"), required=False, allow_null=True)
    assignee_id = Ident(required=False, allow_null=True)
    parent_issue_id = Ident(required=False, allow_null=True)
    stage = Whole(required=False, allow_null=True)
    position = Number(required=False, allow_null=True)
    start_date = Day(required=False, allow_null=True)
    due_date = Day(required=False, allow_null=True)
    suppress_run = Flag(required=False)
    handoff_note = Text(required=False, allow_null=True, max_length=20_000)


class NewIssue(IssueFields):
    """`POST /api/issues`."""

    workspace_id = Ident(required=False, allow_null=True)
    allow_duplicate = Flag(required=False)
    origin_type = OneOf(("quick_create",), required=False, allow_null=True)
    origin_id = Ident(required=False, allow_null=True)


class NewComment(serializers.Serializer[Any]):
    """`POST /api/issues/{id}/comments`."""

    content = Text(blank=False)
    parent_id = Ident(required=False, allow_null=True)


class NewConnectedApp(serializers.Serializer[Any]):
    """`POST /api/connected-apps`: `server` is the entry of an MCP configuration."""

    provider = Text(blank=False, max_length=64)
    server_name = Text(blank=False, max_length=64)
    toolkit_slug = Text(required=False, max_length=64)
    toolkit_name = Text(required=False, max_length=TITLE)
    server = Mapping()
    workspace_id = Ident(required=False, allow_null=True)


class SquadMemberIn(serializers.Serializer[Any]):
    """One member of a squad."""

    member_type = OneOf(("agent", "member"), blank=False)
    member_id = Ident()


class SquadFields(serializers.Serializer[Any]):
    """What admins may write of a squad."""

    name = Text(blank=False, max_length=TITLE)
    leader_id = Ident()
    instructions = Text(required=False, max_length=20_000)
    members = SquadMemberIn(many=True, required=False)


class NewSquad(SquadFields):
    """`POST /api/squads`."""

    workspace_id = Ident(required=False, allow_null=True)


class VerdictBody(serializers.Serializer[Any]):
    """`POST /api/issues/{ref}/squad-evaluated`."""

    outcome = OneOf(VERDICTS, blank=False)
    reason = Text(required=False, allow_null=True, max_length=20_000)


class SquadChange(SquadFields):
    """`PUT /api/squads/{id}`: any of its fields; `members` replaces them all."""

    archived = Flag(required=False)


class QuickCreate(serializers.Serializer[Any]):
    """`POST /api/issues/quick-create`."""

    agent_id = Ident()
    prompt = Text(blank=False, max_length=20_000)
    priority = OneOf(ISSUE_PRIORITIES, blank=False, required=False, allow_null=True)
    due_date = Day(required=False, allow_null=True)
    parent_issue_id = Ident(required=False, allow_null=True)
    workspace_id = Ident(required=False, allow_null=True)


class CommentChange(serializers.Serializer[Any]):
    """`PUT /api/comments/{id}`."""

    content = Text(blank=False)


class MetadataValue(serializers.Serializer[Any]):
    """`PUT /api/issues/{id}/metadata/{key}`: any JSON value up to 64 KiB."""

    value = serializers.JSONField(allow_null=True)

    def validate_value(self, value: Any) -> Any:
        if len(str(value)) > _METADATA_BYTES:
            raise serializers.ValidationError("is too large")
        return value


class CancelBody(serializers.Serializer[Any]):
    """`POST /api/tasks/{id}/cancel`."""

    note = Text(required=False, max_length=2_000)


class RerunBody(serializers.Serializer[Any]):
    """`POST /api/issues/{id}/rerun`: the newest attempt, or the named one."""

    task_id = Ident(required=False, allow_null=True)
    note = Text(required=False, max_length=2_000)


def _environment(value: dict[str, Any]) -> dict[str, str]:
    for name, text in value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", name):
            raise serializers.ValidationError(f"{name!r} is not a name of a variable")
        if not isinstance(text, str):
            raise serializers.ValidationError(f"{name}: must be a string")
    return value


class AgentFields(serializers.Serializer[Any]):
    """What people may write of an agent. Values of `custom_env` and `mcp_config` are never shown again."""

    name = Text(blank=False, max_length=200)
    runtime_id = Ident(required=False, allow_null=True)
    max_concurrent_tasks = Whole(required=False, min_value=1, max_value=50)
    instructions = Text(required=False)
    custom_env = Mapping(required=False)
    custom_args = Texts(required=False)
    mcp_config = Mapping(required=False, allow_null=True)
    model = Text(required=False, max_length=200)
    thinking_level = Text(required=False, max_length=64)
    service_tier = Text(required=False, max_length=64)
    runtime_config = Mapping(required=False)
    retry_rate_limits = Flag(required=False)
    visibility = OneOf(("workspace", "private"), blank=False, required=False)

    def validate_custom_env(self, value: dict[str, Any]) -> dict[str, str]:
        return _environment(value)


class NewAgent(AgentFields):
    """`POST /api/agents`."""

    workspace_id = Ident(required=False, allow_null=True)


class AgentChange(AgentFields):
    """`PUT /api/agents/{id}`, any subset."""

    archived = Flag(required=False)


class ProfileChange(serializers.Serializer[Any]):
    """`PUT /api/runtime-profiles/{id}`, any subset."""

    display_name = Text(blank=False, max_length=200)
    command_name = Text(blank=False, max_length=1_000)
    description = Text(required=False, max_length=2_000)
    fixed_args = Texts(required=False)
    visibility = OneOf(("workspace", "private"), blank=False, required=False)
    enabled = Flag(required=False)


class NewProfile(ProfileChange):
    """`POST /api/workspaces/{id}/runtime-profiles`."""

    protocol_family = OneOf(FAMILIES, blank=False)


class Repo(serializers.Serializer[Any]):
    """A git repository of a workspace."""

    url = Text(blank=False, max_length=2_000)
    description = Text(required=False, max_length=2_000)

    def validate_url(self, value: str) -> str:
        url = value.strip()
        # A leading dash would be an option of git, and a `name::` address a command that git runs.
        if url.startswith("-") or re.match(r"[A-Za-z0-9]+::", url) or any(char.isspace() for char in url):
            raise serializers.ValidationError("is not an address that git may be given")
        return url


class RepoList(serializers.ListField):
    """A list of repositories; a bare string is one without a description."""

    def __init__(self, **options: Any) -> None:
        super().__init__(child=Repo(), max_length=200, **options)

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list):
            raise serializers.ValidationError("must be a list")
        return list(super().to_internal_value([{"url": item} if isinstance(item, str) else item for item in data]))


class WorkspaceChange(serializers.Serializer[Any]):
    """`PATCH /api/workspaces/{id}`, any subset."""

    name = Text(blank=False, max_length=200, required=False)
    description = Text(required=False, allow_null=True)
    context = Text(required=False, allow_null=True)  # type: ignore[assignment]
    repos = RepoList(required=False)
