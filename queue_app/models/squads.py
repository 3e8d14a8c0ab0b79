"""Squads: agents and people under a leading agent that hands the work on."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from .agents import Agent
from .base import Row
from .tenancy import Workspace
from .work import Issue

VERDICTS = ("action", "no_action", "failed")


class Squad(Row):
    """What is assigned to it becomes a task of its leader, who decides which of its members goes on."""

    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="squads")
    name = models.TextField()
    leader = models.ForeignKey(Agent, models.PROTECT, related_name="leads")
    instructions = models.TextField(blank=True, default="")
    archived_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "squad"
        constraints: ClassVar = [models.UniqueConstraint(fields=["workspace", "name"], name="uq_squad_name")]

    def __str__(self) -> str:
        return self.name


class SquadMember(Row):
    """An agent or a person of a squad, beside its leader."""

    squad = models.ForeignKey(Squad, models.CASCADE, related_name="members")
    member_type = models.CharField(max_length=16, choices=[("agent", "agent"), ("member", "member")])
    member_id = models.UUIDField()

    class Meta:
        db_table = "squad_member"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["squad", "member_type", "member_id"], name="uq_squad_member"),
            models.CheckConstraint(condition=Q(member_type__in=["agent", "member"]), name="squad_member_type_check"),
        ]

    def __str__(self) -> str:
        return f"{self.member_type} {self.member_id}"


class SquadVerdict(Row):
    """What a leader decided in one of its runs; the last word of the run counts. `task_id` is a plain id."""

    workspace = models.ForeignKey(Workspace, models.CASCADE, db_index=False)
    issue = models.ForeignKey(Issue, models.CASCADE, related_name="squad_verdicts")
    squad_id = models.UUIDField()
    task_id = models.UUIDField(unique=True)
    outcome = models.CharField(max_length=16, choices=[(name, name) for name in VERDICTS])
    reason = models.TextField(blank=True, default="")

    class Meta:
        db_table = "squad_verdict"

    def __str__(self) -> str:
        return self.outcome
