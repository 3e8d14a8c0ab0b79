"""Squads over HTTP."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.work import inputs
from queue_app.api.work.base import Query, WorkView, checked, ident, scope_of
from queue_app.models import Squad, SquadMember, SquadVerdict
from queue_app.services import squads
from queue_app.services.issues import find as find_issue


class SquadMemberOut(serializers.ModelSerializer[SquadMember]):
    """One member beside the leader."""

    member_type = serializers.CharField(read_only=True)

    class Meta:
        model = SquadMember
        fields = ("member_type", "member_id")


class SquadOut(serializers.ModelSerializer[Squad]):
    """One squad."""

    workspace_id = serializers.UUIDField(read_only=True)
    leader_id = serializers.UUIDField(read_only=True)
    members = SquadMemberOut(many=True, read_only=True)

    class Meta:
        model = Squad
        fields = ("id", "workspace_id", "name", "leader_id", "instructions", "members", "archived_at", "created_at")


class SquadsView(WorkView):
    """`/api/squads`"""

    @extend_schema(parameters=[OpenApiParameter("include_archived", bool)], responses=SquadOut(many=True))
    def get(self, request: Request) -> Response:
        """The squads by name."""
        found = squads.listing(scope_of(request), archived=Query(request).flag("include_archived"))
        return Response(SquadOut(found, many=True).data)

    @extend_schema(request=inputs.NewSquad, responses={201: SquadOut})
    def post(self, request: Request) -> Response:
        """Make a squad. Admins only."""
        made = squads.create(scope_of(request), checked(inputs.NewSquad, request.data))
        return Response(SquadOut(made).data, status=201)


class SquadView(WorkView):
    """`/api/squads/{id}`"""

    @extend_schema(responses=SquadOut)
    def get(self, request: Request, squad_id: str) -> Response:
        """One squad."""
        return Response(SquadOut(squads.find(scope_of(request), ident(squad_id, "squad_id"))).data)

    @extend_schema(request=inputs.SquadChange(partial=True), responses=SquadOut)
    def put(self, request: Request, squad_id: str) -> Response:
        """Change the given fields. Admins only."""
        values = checked(inputs.SquadChange, request.data, partial=True)
        return Response(SquadOut(squads.update(scope_of(request), ident(squad_id, "squad_id"), values)).data)


class VerdictOut(serializers.ModelSerializer[SquadVerdict]):
    """What a leader decided in one run."""

    issue_id = serializers.UUIDField(read_only=True)
    outcome = serializers.CharField(read_only=True)

    class Meta:
        model = SquadVerdict
        fields = ("id", "issue_id", "squad_id", "task_id", "outcome", "reason", "created_at")


class EvaluatedView(WorkView):
    """`/api/issues/{ref}/squad-evaluated`"""

    @extend_schema(request=inputs.VerdictBody, responses=VerdictOut)
    def post(self, request: Request, ref: str) -> Response:
        """Say what was decided; only the leader's own task may."""
        where = scope_of(request)
        values = checked(inputs.VerdictBody, request.data)
        issue = find_issue(where, ref)
        made = squads.judge(where, issue, outcome=values["outcome"], reason=values.get("reason") or "")
        return Response(VerdictOut(made).data)
