"""The demo's coding agent: a small program in the place of a large one. Standard library only.

It does what any agent does: reads its issue with `multica`, checks the repository out, edits files, runs the tests,
commits, pushes its branch, and reports. What to change it knows from the title, since it cannot think.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PACE = float(os.environ.get("DEMO_PACE", "0.4"))
MODULE, TESTS = Path("textkit/words.py"), Path("tests/test_words.py")

SLUGIFY = '''

def slugify(text: str) -> str:
    """The text as a part of an address: lower case, words joined by dashes."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))
'''
SLUGIFY_TEST = """

class Slugify(unittest.TestCase):
    def test_words_are_joined(self) -> None:
        self.assertEqual(words.slugify("Hello,  World 2"), "hello-world-2")
"""
INITIALS = '''

def initials(name: str) -> str:
    """The first letter of each word, in capitals."""
    return "".join(word[0].upper() for word in name.split())
'''
INITIALS_TEST = """

class Initials(unittest.TestCase):
    def test_first_letters(self) -> None:
        self.assertEqual(words.initials("ada king lovelace"), "AKL")
"""
COUNT_TEST = """

class EmptyText(unittest.TestCase):
    def test_it_has_no_words(self) -> None:
        self.assertEqual(words.word_count(""), 0)
"""


class GaveUp(Exception):
    """The agent cannot go on; the text goes to stderr."""


def say(text: str) -> None:
    """One line of the transcript, then a short breath so that people can follow."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    time.sleep(PACE)


def multica(*arguments: str) -> str:
    done = subprocess.run(["multica", *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise GaveUp(f"multica {' '.join(arguments[:2])}: {done.stderr.strip()}")
    return done.stdout


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise GaveUp(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text("utf-8").rstrip("\n") + "\n" + text, "utf-8")


def replace(path: Path, old: str, new: str) -> None:
    before = path.read_text("utf-8")
    if old not in before:
        raise GaveUp(f"{path} does not look as expected")
    path.write_text(before.replace(old, new), "utf-8")


# --- what each issue asks for --------------------------------------------------------------------------------------


def add_slugify() -> str:
    append(MODULE, SLUGIFY)
    append(TESTS, SLUGIFY_TEST)
    return "Add slugify()"


def add_initials() -> str:
    append(MODULE, INITIALS)
    append(TESTS, INITIALS_TEST)
    return "Add initials()"


def fix_count() -> str:
    replace(MODULE, 'len(text.split(" "))', "len(text.split())")
    append(TESTS, COUNT_TEST)
    return "Count no words in an empty text"


def drop_count() -> str:
    replace(MODULE, "def word_count(", "def _word_count(")
    return "Remove word_count()"


def note_change() -> str:
    path = Path("CHANGES.md")
    path.write_text((path.read_text("utf-8") if path.exists() else "# Changes\n\n") + "* Text helpers.\n", "utf-8")
    return "Say what is new in CHANGES.md"


RECIPES = {"slugify": add_slugify, "initials": add_initials, "empty": fix_count, "remove": drop_count}


# --- the work --------------------------------------------------------------------------------------------------------


def ask_provider() -> None:
    """Ask the model provider, over a real connection: the first one of the demo is cut."""
    port = int(os.environ["DEMO_PROVIDER_PORT"])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"how do I do this?\n")
        if not connection.recv(100):
            raise ConnectionResetError("connection reset by peer")


def think_long() -> None:
    for minute in range(1, 300):
        say(f"still thinking about it ({minute})")
        time.sleep(0.5)


def run_tests() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "-q"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise GaveUp(f"the tests of the repository fail after this change\n{done.stderr.strip()[-600:]}")
    return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "OK"


def work(prompt: str) -> None:
    found = re.search(r"\bissue ([0-9a-f-]{36})\b", prompt)
    if found is None:
        raise GaveUp("the prompt names no issue")
    issue: dict[str, Any] = json.loads(multica("issue", "get", found[1], "--output", "json"))
    key, title = issue["identifier"], issue["title"].lower()
    say(f"reading {key}: {issue['title']}")
    multica("issue", "status", key, "in_progress")
    if "provider" in issue["description"]:
        say("asking the model provider")
        ask_provider()
    if "think" in title:
        think_long()
    follow_up = "new comment" in prompt
    recipe = note_change if follow_up else next((do for word, do in RECIPES.items() if word in title), note_change)
    home = Path.cwd()
    path = multica("repo", "checkout", os.environ["DEMO_REPOSITORY"]).strip()
    os.chdir(path)
    say(f"checked the repository out, on {git('rev-parse', '--abbrev-ref', 'HEAD')}")
    message = recipe()
    say(f"edited {', '.join(git('status', '--porcelain').split()[1::2])}")
    say(f"tests: {run_tests()}")
    git("add", "--all")
    git("commit", "--quiet", "--message", f"{message} ({key})")
    git("push", "--quiet", "origin", "HEAD")
    commit, branch = git("rev-parse", "--short", "HEAD"), git("rev-parse", "--abbrev-ref", "HEAD")
    say(f"committed {commit}: {message}")
    report(home, key, f"{message}: commit `{commit}` on branch `{branch}`. The tests of the repository pass.", prompt)
    multica("issue", "status", key, "in_review")
    sys.stdout.write(f"{message}, commit {commit} on {branch}\n")


def report(home: Path, key: str, text: str, prompt: str) -> None:
    file = home / "report.md"
    file.write_text(text, "utf-8")
    thread = re.search(r"--parent ([0-9a-f-]{36})", prompt)
    answer = ["--parent", thread[1]] if thread else []
    multica("issue", "comment", "add", key, "--content-file", str(file), *answer)


def main() -> int:
    try:
        work(sys.stdin.read())
    except (GaveUp, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
