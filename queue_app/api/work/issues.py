"""Issues over HTTP: create, read, list, search, change, metadata, runs, usage, rerun."""

from __future__ import annotations

import json
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.work import inputs, outputs
from queue_app.api.work.base import Query, WorkView, caller_of, checked, scope_of
from queue_app.errors import InvalidError
from queue_app.models import Issue
from queue_app.services import issue_lists, issues, rerun, task_views

_LISTING = [
    *(OpenApiParameter(name, str) for name in ("status", "priority", "metadata", "sort", "direction")),
    *(OpenApiParameter(name, OpenApiTypes.UUID) for name in ("assignee_id", "parent_issue_id", "workspace_id")),
    *(OpenApiParameter(name, int) for name in ("limit", "offset")),
]


class IssuesView(WorkView):
    """`/api/issues`"""

    @extend_schema(operation_id="issues_list", parameters=_LISTING, responses=outputs.IssuePage)
    def get(self, request: Request) -> Response:
        """A page of issues, newest first unless sorted otherwise."""
        query = Query(request)
        found, total = issue_lists.listing(
            scope_of(request),
            filters={
                "statuses": query.words("status"),
                "priorities": query.words("priority"),
                "assignee_id": query.ident("assignee_id"),
                "parent_issue_id": query.ident("parent_issue_id"),
            },
            metadata=_metadata(query),
            sort=_choice(query, "sort", tuple(issue_lists.SORTS), "created_at"),
            direction=_choice(query, "direction", ("asc", "desc"), "desc"),
            limit=query.whole("limit", 50, low=1, high=500),
            offset=query.whole("offset", 0),
        )
        return Response({"issues": outputs.IssueOut(found, many=True).data, "total": total})

    @extend_schema(request=inputs.NewIssue, responses={201: outputs.IssueWritten, 409: outputs.Refusal})
    def post(self, request: Request) -> Response:
        """Make an issue; assigned to an agent, it is enqueued."""
        written = issues.create(scope_of(request), checked(inputs.NewIssue, request.data))
        return Response(_answer(written), status=201)


def _answer(written: issues.Written) -> dict[str, Any]:
    return {**outputs.IssueOut(written.issue).data, "run": outputs.run_of(written.run)}


def _metadata(query: Query) -> dict[str, Any] | None:
    text = query.text("metadata")
    if not text:
        return None
    try:
        value = json.loads(text) if text.startswith("{") else dict(pair.split("=", 1) for pair in text.split(","))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidError("metadata: must be a JSON object or key=value pairs", field="metadata")
    return value


def _choice(query: Query, name: str, words: tuple[str, ...], default: str) -> str:
    chosen = query.text(name) or default
    if chosen not in words:
        raise InvalidError(f"{name}: must be one of {', '.join(words)}", field=name)
    return chosen


class SearchView(WorkView):
    """`/api/issues/search`"""

    @extend_schema(
        parameters=[
            OpenApiParameter("q", str),
            OpenApiParameter("limit", int),
            OpenApiParameter("include_closed", bool),
        ],
        responses=outputs.Hits,
    )
    def get(self, request: Request) -> Response:
        """Issues that hold a text in key, title or description."""
        query = Query(request)
        text = query.text("q")
        found = issue_lists.search(
            scope_of(request),
            text,
            limit=query.whole("limit", 20, low=1, high=100),
            include_closed=query.flag("include_closed"),
        )
        return Response({"issues": [_hit(issue, source, text) for issue, source in found]})


def _hit(issue: Issue, source: str, text: str) -> dict[str, Any]:
    hit = {
        "id": str(issue.id),
        "identifier": issue.identifier,
        "title": issue.title,
        "status": issue.status,
        "match_source": source,
    }
    if source == "description":
        at = issue.description.casefold().find(text.strip().casefold())
        hit["matched_snippet"] = issue.description[max(0, at - 60) : at + 120]
    return hit


class IssueView(WorkView):
    """`/api/issues/{ref}`, where ref is an id or a key such as MUL-12"""

    @extend_schema(responses=outputs.IssueOut)
    def get(self, request: Request, ref: str) -> Response:
        """One issue."""
        return Response(outputs.IssueOut(issues.find(scope_of(request), ref)).data)

    @extend_schema(request=inputs.IssueFields(partial=True), responses=outputs.IssueWritten)
    def put(self, request: Request, ref: str) -> Response:
        """Change the given fields; null clears."""
        values = checked(inputs.IssueFields, request.data, partial=True)
        return Response(_answer(issues.update(scope_of(request), ref, values)))

    @extend_schema(request=inputs.IssueFields(partial=True), responses=outputs.IssueWritten)
    def patch(self, request: Request, ref: str) -> Response:
        """The same as PUT."""
        return self.put(request, ref)

    @extend_schema(responses={200: OpenApiTypes.OBJECT})
    def delete(self, request: Request, ref: str) -> Response:
        """Delete the issue with all that belongs to it; its runs are cancelled. Admins only."""
        issues.delete(scope_of(request), ref)
        return Response({"deleted": True})


class ChildrenView(WorkView):
    """`/api/issues/{ref}/children`"""

    @extend_schema(responses=outputs.IssueList)
    def get(self, request: Request, ref: str) -> Response:
        """The issues directly below this one."""
        found = issue_lists.children(scope_of(request), ref)
        return Response({"issues": outputs.IssueOut(found, many=True).data})


class MetadataView(WorkView):
    """`/api/issues/{ref}/metadata`"""

    @extend_schema(responses=outputs.MetadataOut)
    def get(self, request: Request, ref: str) -> Response:
        """All metadata of the issue."""
        return Response({"metadata": issues.find(scope_of(request), ref).metadata})


class MetadataKeyView(WorkView):
    """`/api/issues/{ref}/metadata/{key}`"""

    @extend_schema(request=inputs.MetadataValue, responses=outputs.MetadataOut)
    def put(self, request: Request, ref: str, key: str) -> Response:
        """Set one key."""
        value = checked(inputs.MetadataValue, request.data)["value"]
        return Response({"metadata": issues.set_metadata(scope_of(request), ref, _key(key), value).metadata})

    @extend_schema(responses=outputs.MetadataOut)
    def delete(self, request: Request, ref: str, key: str) -> Response:
        """Remove one key."""
        return Response({"metadata": issues.delete_metadata(scope_of(request), ref, _key(key)).metadata})


def _key(key: str) -> str:
    cleaned = key.replace("\x00", "")
    if not cleaned or len(cleaned) > 128:
        raise InvalidError("key: must have 1 to 128 characters", field="key")
    return cleaned


class RunsView(WorkView):
    """`/api/issues/{ref}/task-runs`"""

    @extend_schema(responses=outputs.TaskOut(many=True))
    def get(self, request: Request, ref: str) -> Response:
        """Every attempt for this issue, newest first."""
        return Response(outputs.TaskOut(issue_lists.runs(scope_of(request), ref), many=True).data)


class UsageView(WorkView):
    """`/api/issues/{ref}/usage`"""

    @extend_schema(responses=outputs.UsageOut)
    def get(self, request: Request, ref: str) -> Response:
        """Tokens of all attempts for this issue."""
        return Response(issue_lists.usage(scope_of(request), ref))


class RerunView(WorkView):
    """`/api/issues/{ref}/rerun`"""

    @extend_schema(request=inputs.RerunBody, responses={201: outputs.TaskOut})
    def post(self, request: Request, ref: str) -> Response:
        """Run the issue again, on the named attempt's agent or the present assignee, with a fresh session."""
        where = scope_of(request)
        issue = issues.find(where, ref)
        body = checked(inputs.RerunBody, request.data)
        named = body.get("task_id")
        source = task_views.find(where, named) if named else None
        if source is not None and source.issue_id != issue.id:
            raise InvalidError("task_id: is not an attempt for this issue", field="task_id")
        task = rerun.rerun(caller_of(request), source.id if source else issue, body.get("note", ""))
        return Response(outputs.TaskOut(task_views.find(where, task.id)).data, status=201)
