"""The repository that the agents work in: a small Python package with tests and one known bug, made on first use."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

FILES = {
    "README.md": "# textkit\n\nSmall helpers for text. Run the tests with `python3 -m unittest`.\n",
    "textkit/__init__.py": "",
    "textkit/words.py": '''"""Helpers for words."""

from __future__ import annotations

import re

VOWELS = re.compile("[aeiou]")


def word_count(text: str) -> int:
    """How many words the text has."""
    return len(text.split(" "))
''',
    "tests/__init__.py": "",
    "tests/test_words.py": '''"""Tests of the helpers for words."""

from __future__ import annotations

import unittest

from textkit import words


class WordCount(unittest.TestCase):
    def test_words_are_counted(self) -> None:
        self.assertEqual(words.word_count("one two three"), 3)
''',
    ".gitignore": "__pycache__/\n",
}


class GitFailed(Exception):
    """git ended with an error; the text is git's own."""


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder with an identity of its own; its output. Raises GitFailed."""
    identity = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "Demo"), ("EMAIL", "demo@example.invalid"))
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**kept, **identity, "GIT_CONFIG_GLOBAL": os.devnull},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise GitFailed(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def ensure(folder: Path) -> Path:
    """The repository, made if it is not there; a half-made one is finished."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet", "--initial-branch", "main")
    try:
        git(folder, "rev-parse", "--verify", "--quiet", "main")
    except GitFailed:
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", "Start textkit")
    return folder


def branches(folder: Path) -> dict[str, str]:
    """Every branch and the commit it points at."""
    lines = git(folder, "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads").splitlines()
    return dict(line.split(" ", 1) for line in lines)


def new_commits(folder: Path, before: dict[str, str]) -> list[str]:
    """The commits that branches gained since `before`, as lines for people: branch, short id, author, subject."""
    lines: list[str] = []
    for branch, commit in branches(folder).items():
        if branch == "main" or before.get(branch) == commit:
            continue
        start = before.get(branch, "main")
        log = git(folder, "log", "--format=%h  %an  %s", f"{start}..{commit}")
        lines += [f"{branch}  {line}" for line in log.splitlines()]
    return lines
