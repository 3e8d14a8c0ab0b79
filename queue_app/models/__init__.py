"""Columns, constraints and indexes. No behaviour lives here; the import order is the dependency order."""

from .agents import Agent, AgentRuntime, RuntimeProfile
from .connections import ConnectedApp
from .credentials import PersonalAccessToken, TaskToken
from .evidence import (
    AuditEntry,
    ClaimDecision,
    LateWrite,
    TaskEvent,
    TaskMessage,
    TaskOmission,
    TaskProgress,
    TaskUsage,
    TaskUsageHourly,
)
from .inbox import InboxItem
from .squads import Squad, SquadMember, SquadVerdict
from .task import AgentTask
from .tenancy import Member, User, Workspace
from .work import Comment, Issue

__all__ = [
    "Agent",
    "AgentRuntime",
    "AgentTask",
    "AuditEntry",
    "ClaimDecision",
    "Comment",
    "ConnectedApp",
    "InboxItem",
    "Issue",
    "LateWrite",
    "Member",
    "PersonalAccessToken",
    "RuntimeProfile",
    "Squad",
    "SquadMember",
    "SquadVerdict",
    "TaskEvent",
    "TaskMessage",
    "TaskOmission",
    "TaskProgress",
    "TaskToken",
    "TaskUsage",
    "TaskUsageHourly",
    "User",
    "Workspace",
]
