"""Agents, members, repositories and runtime profiles of a workspace over HTTP."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.work import inputs, outputs
from queue_app.api.work.base import Query, WorkView, checked, ident, scope_of
from queue_app.services import agents, leave_workspace, workspace_admin
from queue_app.services.scope import find_agent, find_workspace


class AgentsView(WorkView):
    """`/api/agents`"""

    @extend_schema(
        parameters=[OpenApiParameter("workspace_id", OpenApiTypes.UUID), OpenApiParameter("include_archived", bool)],
        responses=outputs.AgentOut(many=True),
    )
    def get(self, request: Request) -> Response:
        """The agents by name."""
        found = agents.listing(scope_of(request), archived=Query(request).flag("include_archived"))
        return Response(outputs.AgentOut(found, many=True).data)

    @extend_schema(request=inputs.NewAgent, responses={201: outputs.AgentOut})
    def post(self, request: Request) -> Response:
        """Make an agent. People only."""
        agent = agents.create(scope_of(request), checked(inputs.NewAgent, request.data))
        return Response(outputs.AgentOut(agent).data, status=201)


class AgentView(WorkView):
    """`/api/agents/{id}`"""

    @extend_schema(responses=outputs.AgentOut)
    def get(self, request: Request, agent_id: str) -> Response:
        """One agent."""
        return Response(outputs.AgentOut(find_agent(scope_of(request), ident(agent_id, "agent_id"))).data)

    @extend_schema(request=inputs.AgentChange(partial=True), responses=outputs.AgentOut)
    def put(self, request: Request, agent_id: str) -> Response:
        """Change the given fields; `archived` stops new work for it. People only."""
        values = checked(inputs.AgentChange, request.data, partial=True)
        return Response(outputs.AgentOut(agents.update(scope_of(request), ident(agent_id, "agent_id"), values)).data)


class RuntimesView(WorkView):
    """`/api/runtimes`"""

    @extend_schema(
        parameters=[OpenApiParameter("workspace_id", OpenApiTypes.UUID)], responses=outputs.RuntimeOut(many=True)
    )
    def get(self, request: Request) -> Response:
        """The runtimes by name."""
        return Response(outputs.RuntimeOut(agents.runtimes(scope_of(request)), many=True).data)


class WorkspaceView(WorkView):
    """`/api/workspaces/{id}`"""

    @extend_schema(responses=outputs.WorkspaceOut)
    def get(self, request: Request, workspace_id: str) -> Response:
        """One workspace with its repositories."""
        found = find_workspace(scope_of(request), ident(workspace_id, "workspace_id"))
        return Response(outputs.WorkspaceOut(found).data)

    @extend_schema(request=inputs.WorkspaceChange, responses=outputs.WorkspaceOut)
    def patch(self, request: Request, workspace_id: str) -> Response:
        """Change the given fields; `repos` replaces the list. Owners and admins only."""
        values = checked(inputs.WorkspaceChange, request.data)
        changed = workspace_admin.update(scope_of(request), ident(workspace_id, "workspace_id"), values)
        return Response(outputs.WorkspaceOut(changed).data)


class MembersView(WorkView):
    """`/api/workspaces/{id}/members`"""

    @extend_schema(responses=outputs.MemberOut(many=True))
    def get(self, request: Request, workspace_id: str) -> Response:
        """The members."""
        found = workspace_admin.members(scope_of(request), ident(workspace_id, "workspace_id"))
        return Response(outputs.MemberOut(found, many=True).data)


class MemberView(WorkView):
    """`/api/workspaces/{id}/members/{user}`"""

    @extend_schema(responses={200: OpenApiTypes.OBJECT})
    def delete(self, request: Request, workspace_id: str, user_id: str) -> Response:
        """Remove somebody, or leave; what is open on their machines and of their agents is cancelled."""
        where = scope_of(request)
        rows = leave_workspace.leave(where, ident(workspace_id, "workspace_id"), ident(user_id, "user_id"))
        return Response({"removed": True, "cancelled": len(rows)})


class ProfilesView(WorkView):
    """`/api/workspaces/{id}/runtime-profiles`"""

    @extend_schema(responses=outputs.ProfileOut(many=True))
    def get(self, request: Request, workspace_id: str) -> Response:
        """The runtime profiles, disabled ones included."""
        found = workspace_admin.profiles(scope_of(request), ident(workspace_id, "workspace_id"))
        return Response(outputs.ProfileOut(found, many=True).data)

    @extend_schema(request=inputs.NewProfile, responses={201: outputs.ProfileOut})
    def post(self, request: Request, workspace_id: str) -> Response:
        """Offer a command as a runtime. Owners and admins only."""
        values = checked(inputs.NewProfile, request.data)
        made = workspace_admin.create_profile(scope_of(request), ident(workspace_id, "workspace_id"), values)
        return Response(outputs.ProfileOut(made).data, status=201)


class ProfileView(WorkView):
    """`/api/runtime-profiles/{id}`"""

    @extend_schema(request=inputs.ProfileChange(partial=True), responses=outputs.ProfileOut)
    def put(self, request: Request, profile_id: str) -> Response:
        """Change the given fields. Owners and admins only."""
        values = checked(inputs.ProfileChange, request.data, partial=True)
        changed = workspace_admin.update_profile(scope_of(request), ident(profile_id, "profile_id"), values)
        return Response(outputs.ProfileOut(changed).data)
