"""`manage.py demo`: the whole product at work in this terminal, from an empty directory to commits and a table."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from multica import env
from multica.demo import repository, show
from multica.demo.api import Api, ApiFailed
from multica.demo.play import Play
from multica.demo.processes import DemoFailed, Processes
from multica.demo.provider import Provider
from multica.demo.show import Screen
from multica.demo.stories import Story, stories
from multica.supervisor import StopRequested, on_signals, request_stop


class Command(BaseCommand):
    help = "Start a stack and a daemon, file issues, watch agents work on a real repository, show what came of it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--exit", action="store_true", help="stop at the end; status 0 if all ended as it should")
        parser.add_argument("--port", type=int, default=0, help="port of the web server; default: a free one")
        parser.add_argument("--prepare", action="store_true", help="only make the account (the demo does so itself)")

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["prepare"]:
            from multica.demo.account import prepare

            self.stdout.write(json.dumps(prepare()))
            return
        on_signals(request_stop)
        problems = Demo(Screen(self.stdout)).run(options)
        if problems:
            raise CommandError("the demo did not end as it should:\n" + "\n".join(f"* {each}" for each in problems))


class Demo:
    """One run. Everything it keeps lies below `<state directory>/demo`."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.folder = env.state_dir() / "demo"
        self.processes = Processes(self.folder, self.say)

    def say(self, text: str) -> None:
        self.screen.live("demo", "", text)

    def run(self, options: dict[str, Any]) -> list[str]:
        """Returns what did not end as it should; nothing that was started is left afterwards."""
        try:
            with Provider() as provider:
                problems = self.play(provider, options["port"])
                if not options["exit"]:
                    self.stay()
            return problems
        except StopRequested:
            self.screen.line("stopped")
            return []
        except (DemoFailed, ApiFailed, repository.GitFailed, OSError) as error:
            self.screen.line(self.processes.tails())
            raise CommandError(f"the demo failed: {error}") from None
        finally:
            on_signals(lambda _number: os._exit(130))  # a second Ctrl-C: the kernel ends the children with us
            self.processes.stop()

    def play(self, provider: Provider, port: int) -> list[str]:
        """From nothing to the table; returns the problems."""
        self.say(f"everything of the demo lies in {self.folder}")
        folder = repository.ensure(self.folder / "repository")
        before = repository.branches(folder)
        self.processes.start_stack(port)
        self.say(f"the stack is up: {self.processes.url}")
        account = self.processes.account()
        api = Api(self.processes.url, account["token"])
        play = Play(api, self.screen, account["workspace_id"], self.processes.check)
        play.make_workspace(folder)
        self.processes.start_daemon(account["token"])
        self.processes.daemon_ready(lambda: play.runtime() is not None)
        self.say("the daemon is connected")
        agents = play.make_agents({"DEMO_REPOSITORY": str(folder), "DEMO_PROVIDER_PORT": str(provider.port)})
        filed = stories()
        play.file(filed, agents)
        play.watch(filed)
        commits = repository.new_commits(folder, before)
        self.report(filed, commits, folder, account)
        problems = judge(filed, len(commits))
        if problems:
            self.screen.line(self.processes.tails())
        return problems

    def report(self, filed: list[Story], commits: list[str], folder: Path, account: dict[str, Any]) -> None:
        sections = [
            ["What ran", *show.table(filed)],
            [f"Commits that were made (in {folder})", *(commits or ["none"])],
            show.account_lines(self.processes.url, account),
            show.how_to_use(show.installed_agents(Path(os.path.expanduser("~"))), self.processes.url),
        ]
        for lines in sections:
            if lines:
                self.screen.line()
                for line in lines:
                    self.screen.line(line)
        self.screen.line()

    def stay(self) -> None:
        """Leave the stack and the daemon running until Ctrl-C."""
        self.screen.line("The stack and the daemon go on until Ctrl-C.")
        while True:
            self.processes.check()
            time.sleep(0.5)


def judge(filed: list[Story], commits: int) -> list[str]:
    """What did not end as it should, as sentences; nothing when all did."""
    problems = [
        f"{story.key} ({story.title}): {wrong}"
        for story in filed
        if (wrong := "not over in time" if not story.settled else story.check(story.runs))
    ]
    wanted = sum(story.commits for story in filed)
    if commits != wanted:
        problems.append(f"{wanted} commits should have been made, there are {commits}")
    return problems
