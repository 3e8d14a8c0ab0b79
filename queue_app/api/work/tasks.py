"""Attempts over HTTP: one task, its transcript, its cancellation."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.work import inputs, outputs
from queue_app.api.work.base import Query, WorkView, caller_of, checked, ident, scope_of
from queue_app.services import cancel, task_views


class TaskView(WorkView):
    """`/api/tasks/{id}`"""

    @extend_schema(responses=outputs.TaskDetail)
    def get(self, request: Request, task_id: str) -> Response:
        """One attempt with its result and newest progress."""
        return Response(outputs.TaskDetail(task_views.find(scope_of(request), ident(task_id, "task_id"))).data)


class MessagesView(WorkView):
    """`/api/tasks/{id}/messages`"""

    @extend_schema(
        parameters=[OpenApiParameter("since", int), OpenApiParameter("limit", int)],
        responses=outputs.MessageOut(many=True),
    )
    def get(self, request: Request, task_id: str) -> Response:
        """The transcript in order, after `since`."""
        query = Query(request)
        found = task_views.messages(
            scope_of(request),
            ident(task_id, "task_id"),
            since=query.whole("since", 0, high=2**31 - 1),
            limit=query.whole("limit", task_views.MESSAGES, low=1, high=task_views.MESSAGES),
        )
        return Response(outputs.MessageOut(found, many=True).data)


class CancelView(WorkView):
    """`/api/tasks/{id}/cancel`"""

    @extend_schema(request=inputs.CancelBody, responses=outputs.TaskOut)
    def post(self, request: Request, task_id: str) -> Response:
        """Cancel an attempt, at once; one that has ended is returned as it is."""
        where = scope_of(request)
        task = task_views.find(where, ident(task_id, "task_id"))
        note = checked(inputs.CancelBody, request.data).get("note", "")
        cancel.cancel_task(caller_of(request), task.id, note=note)
        return Response(outputs.TaskOut(task_views.find(where, task.id)).data)
