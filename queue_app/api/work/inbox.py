"""Issues made from a sentence, and the inbox in which their makers hear of it, over HTTP."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.work import inputs, outputs
from queue_app.api.work.base import Query, WorkView, checked, ident, scope_of
from queue_app.models import InboxItem
from queue_app.services import inbox, quick_create


class InboxItemOut(serializers.ModelSerializer[InboxItem]):
    """One message to the caller. `issue_identifier` is null when it is about no issue, or about one that is gone."""

    issue_id = serializers.UUIDField(read_only=True, allow_null=True)
    issue_identifier = serializers.CharField(source="issue.identifier", read_only=True, default=None, allow_null=True)
    workspace_id = serializers.UUIDField(read_only=True)
    type = serializers.CharField(read_only=True)

    class Meta:
        model = InboxItem
        fields = (
            "id",
            "workspace_id",
            "type",
            "title",
            "body",
            "issue_id",
            "issue_identifier",
            "task_id",
            "created_at",
            "read_at",
        )


class QuickCreateView(WorkView):
    """`/api/issues/quick-create`"""

    @extend_schema(request=inputs.QuickCreate, responses={202: outputs.TaskOut})
    def post(self, request: Request) -> Response:
        """Ask an agent to make an issue from a sentence. People only; the end comes to their inbox."""
        task = quick_create.quick_create(scope_of(request), checked(inputs.QuickCreate, request.data))
        return Response(outputs.TaskOut(task).data, status=202)


class InboxView(WorkView):
    """`/api/inbox`"""

    @extend_schema(parameters=[OpenApiParameter("unread", bool)], responses=InboxItemOut(many=True))
    def get(self, request: Request) -> Response:
        """The caller's messages, newest first."""
        found = inbox.listing(scope_of(request), unread=Query(request).flag("unread"))
        return Response(InboxItemOut(found, many=True).data)


class ReadView(WorkView):
    """`/api/inbox/{id}/read`"""

    @extend_schema(request=None, responses=InboxItemOut)
    def post(self, request: Request, item_id: str) -> Response:
        """Mark a message as read."""
        return Response(InboxItemOut(inbox.mark_read(scope_of(request), ident(item_id, "item_id"))).data)
