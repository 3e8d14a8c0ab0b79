"""The standing rules of a task, in the file that the agent's CLI reads by itself, between marks of the daemon."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from daemon_client.protocol import ClaimedTask

BEGIN: Final = "<!-- BEGIN MULTICA-RUNTIME (auto-managed; do not edit) -->"
END: Final = "<!-- END MULTICA-RUNTIME -->"
_BLOCK: Final = re.compile(re.escape(BEGIN) + r".*?" + re.escape(END) + r"\n?", re.DOTALL)

_COMMANDS: Final = """\
## Commands

The `multica` command is your only way to the tracker; it already knows who you are. Add `--output json` to read an
answer as data.

| what | command |
| --- | --- |
| read an issue | `multica issue get ID --output json` |
| read its comments | `multica issue comment list ID --output json` |
| write a comment | `multica issue comment add ID --content-file FILE` (or `--content TEXT`) |
| set the status | `multica issue status ID STATUS` |
| change fields | `multica issue update ID --title T --description-file FILE --priority P` |
| find issues | `multica issue list --status STATUS --output json` |
| file an issue | `multica issue create --title T --description-file FILE` |
| get a repository | `multica repo checkout URL` (prints the directory) |

Statuses: backlog, todo, in_progress, in_review, done, blocked, cancelled. Write long texts to a file first and pass the
file: quotes and line breaks then arrive as you wrote them."""

_RULES: Final = """\
## Rules

* Work only below your current directory. Repositories come from `multica repo checkout`, which puts you on a branch
  of your own; commit there and do not switch to the default branch.
* Do everything in the foreground. What still runs in the background when you end is ended with you.
* Nobody is there to answer a question. Decide what can be decided, say what you assumed, and ask in a comment only
  for what really blocks you.
* Use no other credential than the ones in your environment, and print none.
* The directory may hold work of an earlier task on the same issue: look before you start over, and never throw away
  changes that you did not make."""

_ISSUE_WORKFLOW: Final = """\
## How to work on an issue

1. Read the issue and its comments.
2. Set it to `in_progress`.
3. Check out what you need, do the work, run the tests, commit.
4. Report in one comment: what changed, on which branch, how you checked it, what is open.
5. Set it to `in_review`, or to `blocked` with the reason if you cannot go on.

Your last message is kept as the result of this run; make it a short summary."""

_CHAT_WORKFLOW: Final = """\
## How to answer in a chat

Your last message is the answer that the person sees. Write it for them: complete, short, without an account of your
steps."""

_CREATE_WORKFLOW: Final = """\
## How to file an issue from a sentence

Run `multica issue create` exactly once, then end. Do not work on the issue itself."""

_AUTOPILOT_WORKFLOW: Final = """\
## How to do a scheduled run

Follow the instructions of this run. File or update issues only where they say so. Your last message is the record of
the run."""


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _quoted(text: str) -> str:
    """Foreign text that must be read as a quotation, and cannot close the managed block."""
    return "\n".join(f"> {line}" for line in text.replace("<!--", "<!- -").splitlines())


def _workflow(task: ClaimedTask) -> str:
    if task.chat_session_id:
        return _CHAT_WORKFLOW
    if task.autopilot_run_id and not task.issue_id:
        return _AUTOPILOT_WORKFLOW
    return _CREATE_WORKFLOW if task.quick_create_prompt else _ISSUE_WORKFLOW


def _repositories(task: ClaimedTask) -> str:
    lines = []
    for repo in task.repos:
        url, ref, what = (_text(repo.get(key)) for key in ("url", "ref", "description"))
        if url:
            start = f" (start from `{ref}`)" if ref else ""
            lines.append(f"* `{url}`{start}" + (f": {what}" if what else ""))
    head = "## Repositories\n\nNothing is checked out yet. Get what you need with `multica repo checkout URL`:\n\n"
    return head + "\n".join(lines) if lines else ""


def _statuses(task: ClaimedTask) -> str:
    custom = task.raw.get("issue_statuses")
    entries = [status for status in custom if isinstance(status, dict)] if isinstance(custom, list) else []
    lines = [f"* `{_text(one.get('key'))}` ({_text(one.get('category'))}): {_text(one.get('name'))}" for one in entries]
    return "## Further statuses of this workspace\n\n" + "\n".join(lines) if lines else ""


def compose(task: ClaimedTask, skills: Sequence[str] = ()) -> str:
    """The brief of a task: only what stays true for the whole run, so that the provider's prompt cache keeps it."""
    instructions = _text(task.agent.get("instructions"))
    context = _text(task.raw.get("workspace_context"))
    person, about = (_text(task.raw.get(f"requesting_user_{key}")) for key in ("name", "profile_description"))
    sections = [
        f"# You are {task.agent_name or 'an agent'}\n\nYou work unattended on a task that Multica gave you.",
        f"## Your instructions\n\n{instructions}" if instructions else "",
        f"## About this workspace\n\n{context}" if context else "",
        f"## For whom you work\n\n{person or 'The owner of this machine'}:\n\n{_quoted(about)}" if about else "",
        _COMMANDS,
        _statuses(task),
        _repositories(task),
        _RULES,
        _workflow(task),
        "## Skills\n\n" + "\n".join(f"* {name}" for name in skills) if skills else "",
        "Where these rules and a repository's own files disagree, these rules hold for how to reach Multica, and the "
        "repository's files for its code.",
    ]
    return "\n\n".join(section for section in sections if section)


def _read(path: Path) -> str:
    # Bytes, because reading as text would change the line ends of a file that is not ours.
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.is_file() else ""


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


def inject(path: Path, brief: str) -> None:
    """Put the brief into a file: the old block is replaced in place, text of the user stays byte for byte."""
    before = _read(path)
    clean = brief.encode("utf-8", "replace").decode("utf-8").replace(END, "")
    block = f"{BEGIN}\n{clean}\n{END}\n"
    if _BLOCK.search(before):
        after = _BLOCK.sub(lambda _: block, before, count=1)
    else:
        gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
        after = before + gap + block
    _write(path, after)


def strip(path: Path) -> None:
    """Take the brief out again; a file that held nothing else is removed."""
    before = _read(path)
    after = re.sub(r"\n?" + _BLOCK.pattern, "", before, flags=re.DOTALL)
    if after == before:
        return
    if after.strip():
        _write(path, after)
    else:
        path.unlink()
