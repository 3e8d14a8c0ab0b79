"""`multica issue …`: read and change issues, for people and, with the token of a task, for agents."""

from __future__ import annotations

import argparse
import re
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from daemon_client.cli import add_profile, emit, note
from daemon_client.cli.api_client import ApiError, Client, Json, client, text_or_file
from daemon_client.errors import ConfigError, DecodeError

STATUSES: Final = ("backlog", "todo", "in_progress", "in_review", "done", "blocked", "cancelled")
PRIORITIES: Final = ("urgent", "high", "medium", "low", "none")
_STATUS: Final = re.compile(r"[a-z0-9][a-z0-9_]{0,31}")
_CLEAR: Final = ("none", "null", "")


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("issue", help="read, file and change issues, and comment on them")
    commands = parser.add_subparsers(dest="issue_command", metavar="COMMAND", required=True)
    _register_reading(commands)
    _register_writing(commands)
    _register_comments(commands)


def _command(commands: Any, name: str, help_text: str, run: Callable[[argparse.Namespace], int]) -> Any:
    parser = commands.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
    # `table` is what other clients call the form for people.
    parser.add_argument("--output", choices=("text", "table", "json"), default="text", help="how to print the answer")
    add_profile(parser)
    parser.set_defaults(run=run)
    return parser


def _register_reading(commands: Any) -> None:
    get = _command(commands, "get", "show one issue", run_get)
    get.add_argument("issue", metavar="ISSUE", help="key like ABC-12, or id")
    listing = _command(commands, "list", "list issues of the workspace", run_list)
    listing.add_argument("--status", type=_status)
    listing.add_argument("--priority", choices=PRIORITIES)
    listing.add_argument("--assignee", help="name or id")
    listing.add_argument("--project", help="id")
    listing.add_argument("--limit", type=int, default=50)
    listing.add_argument("--offset", type=int, default=0)


def _register_writing(commands: Any) -> None:
    create = _command(commands, "create", "file an issue", run_create)
    create.add_argument("--title", required=True)
    _add_fields(create)
    create.add_argument("--parent", help="issue that this one belongs to")
    create.add_argument(
        "--allow-duplicate", action="store_true", help="file it although an open one has the same title"
    )
    update = _command(commands, "update", "change fields of an issue", run_update)
    update.add_argument("issue", metavar="ISSUE")
    update.add_argument("--title")
    _add_fields(update)
    update.add_argument("--parent", help="issue that this one belongs to; none takes it out")
    status = _command(commands, "status", "set the status of an issue", run_status)
    status.add_argument("issue", metavar="ISSUE")
    status.add_argument("status", type=_status)
    status.add_argument("--suppress-run", action="store_true", help="start no agent because of this")
    assign = _command(commands, "assign", "hand an issue to a person, an agent or a squad", run_assign)
    assign.add_argument("issue", metavar="ISSUE")
    assign.add_argument("assignee", nargs="?", help="name or id; leave it out with --unassign")
    assign.add_argument("--to", dest="assignee_option", metavar="ASSIGNEE", help="the same as the second argument")
    assign.add_argument("--unassign", action="store_true")


def _add_fields(parser: Any) -> None:
    parser.add_argument("--description")
    parser.add_argument("--description-file", metavar="FILE", help="read it from a file, - for standard input")
    parser.add_argument("--status", type=_status)
    parser.add_argument("--priority", choices=PRIORITIES)
    parser.add_argument("--assignee", help="name or id of a person, an agent or a squad")
    parser.add_argument("--project", help="id")
    parser.add_argument("--start-date", help="YYYY-MM-DD")
    parser.add_argument("--due-date", help="YYYY-MM-DD")
    parser.add_argument("--stage", type=int)


def _register_comments(commands: Any) -> None:
    comment = commands.add_parser("comment", help="read and write comments")
    verbs = comment.add_subparsers(dest="comment_command", metavar="COMMAND", required=True)
    add = _command(verbs, "add", "write a comment", run_comment_add)
    add.add_argument("issue", metavar="ISSUE")
    add.add_argument("--content")
    add.add_argument("--content-file", metavar="FILE", help="read it from a file, - for standard input")
    add.add_argument("--parent", metavar="COMMENT", help="answer in this thread")
    listing = _command(verbs, "list", "read the comments of an issue", run_comment_list)
    listing.add_argument("issue", metavar="ISSUE")
    listing.add_argument("--thread", metavar="COMMENT", help="only the thread of this comment")
    listing.add_argument("--since", metavar="TIME", help="only newer ones")
    listing.add_argument("--recent", type=int, metavar="N", help="only the newest N")
    listing.add_argument("--tail", type=int, metavar="N", help="only the last N of each thread")
    listing.add_argument("--roots-only", action="store_true", help="only the first comment of each thread")
    listing.add_argument("--summary", action="store_true", help="shorten long texts")


def _status(text: str) -> str:
    value = text.strip().lower().replace("-", "_")
    if not _STATUS.fullmatch(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a status; use one of {', '.join(STATUSES)}")
    return value


# --- commands ----------------------------------------------------------------------------------------------------


def resolve(api: Client, reference: str) -> Json:
    """The issue behind a key or id. Raises ApiError with 404 when there is none."""
    return _object(api.get(f"/api/issues/{urllib.parse.quote(reference.strip(), safe='')}"))


def run_get(args: argparse.Namespace) -> int:
    issue = resolve(client(args), args.issue)
    emit(args, issue, _issue_text(issue))
    return 0


def run_list(args: argparse.Namespace) -> int:
    api = client(args)
    query: Json = {
        "workspace_id": api.target.workspace_id,
        "status": args.status,
        "priority": args.priority,
        "project_id": args.project,
        "limit": args.limit,
        "offset": args.offset or None,
    }
    if args.assignee:
        query["assignee_id"] = find_assignee(api, args.assignee)[1]
    answer = api.get("/api/issues", query)
    issues = _rows(answer, "issues")
    table = _table(issues, ("identifier", "status", "priority", "title")) if issues else "no issues"
    emit(args, answer, table)
    total = answer.get("total") if isinstance(answer, dict) else None
    if isinstance(total, int) and total > args.offset + len(issues) and args.output != "json":
        note(f"{len(issues)} of {total}; the next ones: --offset {args.offset + len(issues)}")
    return 0


def run_create(args: argparse.Namespace) -> int:
    import os

    api = client(args)
    body = {"title": args.title} | _fields(api, args)
    if args.parent:
        body["parent_issue_id"] = resolve(api, args.parent).get("id")
    if args.allow_duplicate:
        body["allow_duplicate"] = True
    if task := os.environ.get("MULTICA_QUICK_CREATE_TASK_ID"):
        body |= {"origin_type": "quick_create", "origin_id": task}
    issue = _object(api.post("/api/issues", body))
    emit(args, issue, f"{_key(issue)} {issue.get('title', '')}")
    return 0


def run_update(args: argparse.Namespace) -> int:
    api = client(args)
    body = _fields(api, args)
    if args.title is not None:
        body["title"] = args.title
    if args.parent is not None:
        body["parent_issue_id"] = None if args.parent in _CLEAR else resolve(api, args.parent).get("id")
    if not body:
        raise ConfigError("nothing to change; name at least one field, for example --title")
    return _put(args, api, body, "updated")


def run_status(args: argparse.Namespace) -> int:
    body: Json = {"status": args.status}
    if args.suppress_run:
        body["suppress_run"] = True
    return _put(args, client(args), body, f"is now {args.status}")


def run_assign(args: argparse.Namespace) -> int:
    api = client(args)
    wanted = args.assignee or args.assignee_option
    if bool(wanted) == args.unassign:
        raise ConfigError("name one assignee, or say --unassign")
    kind, identity = (None, None) if args.unassign else find_assignee(api, wanted)
    done = "has no assignee now" if args.unassign else f"is assigned to {wanted}"
    return _put(args, api, {"assignee_type": kind, "assignee_id": identity}, done)


def _put(args: argparse.Namespace, api: Client, body: Json, done: str) -> int:
    known = resolve(api, args.issue)
    issue = _object(api.put(f"/api/issues/{known.get('id')}", body))
    emit(args, issue, f"{_key(issue) or _key(known)} {done}")
    return 0


def run_comment_add(args: argparse.Namespace) -> int:
    api = client(args)
    content = text_or_file(args.content, args.content_file, "content")
    if not content or not content.strip():
        raise ConfigError("a comment needs a text: --content TEXT or --content-file FILE")
    body: Json = {"content": content}
    if args.parent:
        body["parent_id"] = args.parent
    comment = _object(api.post(f"/api/issues/{resolve(api, args.issue).get('id')}/comments", body))
    emit(args, comment, f"comment {comment.get('id', '')} added")
    return 0


def run_comment_list(args: argparse.Namespace) -> int:
    api = client(args)
    query: Json = {"thread": args.thread, "since": args.since, "recent": args.recent, "tail": args.tail}
    query |= {name: "true" for name in ("roots_only", "summary") if getattr(args, name)}
    answer = api.get(f"/api/issues/{resolve(api, args.issue).get('id')}/comments", query)
    comments = _rows(answer, "comments")
    emit(args, answer, "\n\n".join(map(_comment_text, comments)) or "no comments")
    return 0


# --- pieces ------------------------------------------------------------------------------------------------------


def _fields(api: Client, args: argparse.Namespace) -> Json:
    """The fields that were named; `none` clears a date or a project."""
    body: Json = {}
    description = text_or_file(args.description, args.description_file, "description")
    for name, value in (
        ("description", description),
        ("status", args.status),
        ("priority", args.priority),
        ("stage", args.stage),
    ):
        if value is not None:
            body[name] = value
    for option, name in (("project", "project_id"), ("start_date", "start_date"), ("due_date", "due_date")):
        value = getattr(args, option)
        if value is not None:
            body[name] = None if value in _CLEAR else value
    if args.assignee is not None:
        body["assignee_type"], body["assignee_id"] = find_assignee(api, args.assignee)
    return body


def find_assignee(api: Client, wanted: str) -> tuple[str, str]:
    """(type, id) of the one person, agent or squad with this name or id. Raises ConfigError when it is none or
    several.
    """
    workspace = api.target.workspace_id
    sources: tuple[tuple[str, str, Json, str], ...] = (
        ("member", f"/api/workspaces/{workspace}/members", {}, "user_id"),
        ("agent", "/api/agents", {"workspace_id": workspace}, "id"),
        ("squad", "/api/squads", {}, "id"),
    )
    found: list[tuple[str, str]] = []
    failures: list[ApiError] = []
    for kind, path, query, key in sources:
        try:
            rows = _rows(api.get(path, query), f"{kind}s")
        except ApiError as error:
            failures.append(error)
            continue
        found += [(kind, str(row.get(key))) for row in rows if _is_meant(row, key, wanted)]
    if len(failures) == len(sources):
        raise failures[0]
    if len(found) != 1:
        what = "nobody is" if not found else "several are"
        raise ConfigError(f"{what} called {wanted!r} here; give the id")
    return found[0]


def _is_meant(row: Json, key: str, wanted: str) -> bool:
    if row.get("archived_at"):
        return False
    names = (row.get(key), row.get("name"), row.get("email"))
    return wanted.strip().lower() in (str(name).lower() for name in names if name)


def _object(answer: Any) -> Json:
    if isinstance(answer, dict):
        return answer
    raise DecodeError("the server's answer is not the object that was asked for")


def _rows(answer: Any, key: str) -> list[Json]:
    """A list at top level, or inside an envelope."""
    rows = answer.get(key) if isinstance(answer, dict) else answer
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _key(issue: Json) -> str:
    return str(issue.get("identifier") or issue.get("id") or "")


def _issue_text(issue: Json) -> str:
    head = f"{_key(issue)}  {issue.get('title', '')}"
    facts = [
        f"{label}: {issue[name]}"
        for label, name in (("status", "status"), ("priority", "priority"), ("due", "due_date"), ("id", "id"))
        if issue.get(name)
    ]
    if issue.get("assignee_id"):
        facts.append(f"assignee: {issue.get('assignee_type')} {issue['assignee_id']}")
    return "\n".join([head, "  ".join(facts), "", str(issue.get("description") or "(no description)")])


def _comment_text(comment: Json) -> str:
    answer = "  " if comment.get("parent_id") else ""
    who = f"{comment.get('author_type', '')} {comment.get('author_name') or comment.get('author_id') or ''}".strip()
    lines = [
        f"[{comment.get('id', '')}] {who}, {comment.get('created_at', '')}",
        *str(comment.get("content") or "").splitlines(),
    ]
    return "\n".join(answer + line for line in lines)


def _table(rows: Sequence[Json], columns: Iterable[str]) -> str:
    """Columns as wide as their widest entry; the last one is not padded."""
    names = list(columns)
    cells = [names, *([" ".join(str(row.get(name) or "").split()) for name in names] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(names))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )
