"""Comments over HTTP."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.work import inputs, outputs
from queue_app.api.work.base import Query, WorkView, checked, ident, scope_of
from queue_app.errors import InvalidError
from queue_app.models import Comment
from queue_app.services import comments

_READING = [
    *(OpenApiParameter(name, OpenApiTypes.DATETIME) for name in ("since", "before")),
    *(OpenApiParameter(name, OpenApiTypes.UUID) for name in ("thread", "before_id")),
    *(OpenApiParameter(name, int) for name in ("tail", "recent")),
    *(OpenApiParameter(name, bool) for name in ("roots_only", "summary", "fold")),
]


class CommentsView(WorkView):
    """`/api/issues/{ref}/comments`"""

    @extend_schema(parameters=_READING, responses=outputs.CommentOut(many=True))
    def get(self, request: Request, ref: str) -> Response:
        """Comments, oldest first. Headers `X-Multica-Next-Before` and `-Id` lead to an older page, if there is one."""
        query = Query(request)
        reading = comments.Reading(
            since=_instant(query, "since"),
            thread=query.ident("thread"),
            tail=query.maybe_whole("tail", low=0, high=comments.PAGE),
            recent=query.maybe_whole("recent", low=1, high=comments.PAGE),
            before=_instant(query, "before"),
            before_id=query.ident("before_id"),
            roots_only=query.flag("roots_only"),
            fold=query.flag("fold"),
        )
        page = comments.read(scope_of(request), ref, reading)
        context = {"facts": page.facts, "summary": query.flag("summary")}
        response = Response(outputs.CommentOut(page.comments, many=True, context=context).data)
        if page.next_before is not None:
            response["X-Multica-Next-Before"] = page.next_before.isoformat()
            response["X-Multica-Next-Before-Id"] = str(page.next_before_id)
        return response

    @extend_schema(request=inputs.NewComment, responses={201: outputs.CommentWritten})
    def post(self, request: Request, ref: str) -> Response:
        """Add a comment; with a task token, as the task's agent."""
        values = checked(inputs.NewComment, request.data)
        parent_id = values.get("parent_id")
        written = comments.add(scope_of(request), ref, content=values["content"], parent_id=parent_id)
        return Response(_written(written), status=201)


def _instant(query: Query, name: str) -> datetime | None:
    # An unescaped plus of an offset arrives as a space.
    text = query.text(name).strip().replace(" ", "+")
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidError(f"{name}: must be an RFC 3339 time", field=name) from None
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


def _one(comment: Comment) -> dict[str, object]:
    facts = comments.facts_of([comment]) if comment.parent_id is None else {}
    return dict(outputs.CommentOut(comment, context={"facts": facts}).data)


def _written(written: comments.Written) -> dict[str, object]:
    runs = [
        {**(outputs.run_of(one.run) or {}), "agent_id": str(one.target.agent.id), "why": one.target.why}
        for one in written.runs
    ]
    return {**_one(written.comment), "run": outputs.run_of(written.run), "runs": runs}


class CommentView(WorkView):
    """`/api/comments/{id}`"""

    @extend_schema(responses=outputs.CommentOut)
    def get(self, request: Request, comment_id: str) -> Response:
        """One comment."""
        return Response(_one(comments.find(scope_of(request), ident(comment_id, "comment_id"))))

    @extend_schema(request=inputs.CommentChange, responses=outputs.CommentWritten)
    def put(self, request: Request, comment_id: str) -> Response:
        """Change the words of one's own comment; tasks that act on the old ones are stopped."""
        values = checked(inputs.CommentChange, request.data)
        where, ident_ = scope_of(request), ident(comment_id, "comment_id")
        return Response(_written(comments.edit(where, ident_, content=values["content"])))

    @extend_schema(responses={200: OpenApiTypes.OBJECT})
    def delete(self, request: Request, comment_id: str) -> Response:
        """Delete a comment: its author, or an admin."""
        comments.delete(scope_of(request), ident(comment_id, "comment_id"))
        return Response({"deleted": True})


class ResolveView(WorkView):
    """`/api/comments/{id}/resolve`"""

    @extend_schema(request=None, responses=outputs.CommentOut)
    def post(self, request: Request, comment_id: str) -> Response:
        """Mark the thread as settled."""
        return self._set(request, comment_id, True)

    @extend_schema(responses=outputs.CommentOut)
    def delete(self, request: Request, comment_id: str) -> Response:
        """Open the thread again."""
        return self._set(request, comment_id, False)

    def _set(self, request: Request, comment_id: str, resolved: bool) -> Response:
        found = comments.resolve(scope_of(request), ident(comment_id, "comment_id"), resolved=resolved)
        return Response(_one(found))
