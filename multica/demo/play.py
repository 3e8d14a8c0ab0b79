"""The demo from the first issue to the last end: files the issues, watches, interferes where a story says so."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from multica.demo.api import Api
from multica.demo.processes import DemoFailed
from multica.demo.show import Screen
from multica.demo.stories import Story

PROFILE, AGENTS = "Demo agent", ("Ada", "Grace")
LIMIT, LOOK_EVERY = 120.0, 0.3
SCRIPT = Path(__file__).with_name("agent.py")


@dataclass
class Play:
    """One run of the demo against a stack that is up."""

    api: Api
    screen: Screen
    workspace_id: str
    check_processes: Callable[[], None]
    seen: dict[str, str] = field(default_factory=dict)
    heard: dict[str, int] = field(default_factory=dict)

    # -- before the daemon --

    def make_workspace(self, repository: Path) -> None:
        """Name the repository to the workspace and offer the demo's agent as a runtime."""
        repo = {"url": str(repository), "description": "a small package with tests"}
        self.api.call("PATCH", f"workspaces/{self.workspace_id}", {"repos": [repo]})
        command = {"command_name": sys.executable, "fixed_args": [str(SCRIPT)], "enabled": True}
        profiles = f"workspaces/{self.workspace_id}/runtime-profiles"
        known = [each for each in self.api.get(profiles) if each["display_name"] == PROFILE]
        if known:
            self.api.put(f"runtime-profiles/{known[0]['id']}", command)
            self.profile_id = known[0]["id"]
        else:
            body = {"display_name": PROFILE, "protocol_family": "plain", **command}
            self.profile_id = self.api.post(profiles, body)["id"]
        self.began = datetime.now(UTC)

    def runtime(self) -> dict[str, Any] | None:
        """The runtime of the demo's daemon, once it was heard in this run."""
        for each in self.api.get("runtimes"):
            heard = each["last_seen_at"] and datetime.fromisoformat(each["last_seen_at"]) >= self.began
            if each["profile_id"] == self.profile_id and each["status"] == "online" and heard:
                return dict(each)
        return None

    # -- with it --

    def make_agents(self, environment: dict[str, str]) -> dict[str, str]:
        """The agents by name, bound to the daemon's runtime."""
        runtime = self.runtime()
        if runtime is None:
            raise DemoFailed("the daemon's runtime is gone")
        known = {each["name"]: each["id"] for each in self.api.get("agents")}
        body = {"runtime_id": runtime["id"], "custom_env": environment, "max_concurrent_tasks": 3}
        for name in AGENTS:
            if name in known:
                self.api.put(f"agents/{known[name]}", body)
            else:
                known[name] = self.api.post("agents", {"name": name, **body})["id"]
        return known

    def file(self, stories: Sequence[Story], agents: dict[str, str]) -> None:
        """File every story's issue, assigned to its agent."""
        for story in stories:
            body = {"title": story.title, "description": story.description, "allow_duplicate": True}
            assignee = {"assignee_type": "agent", "assignee_id": agents[story.agent]}
            story.issue = self.api.post("issues", {**body, **assignee})
            self.screen.live(story.key, "filed", f"{story.title} (for {story.agent})")

    def watch(self, stories: Sequence[Story]) -> None:
        """Follow all tasks to their ends; returns early only when time is up, with what there is."""
        end = time.monotonic() + LIMIT
        while not all(story.settled for story in stories) and time.monotonic() < end:
            self.check_processes()
            for story in stories:
                if not story.settled:
                    self.look(story)
            time.sleep(LOOK_EVERY)

    def look(self, story: Story) -> None:
        """One look at a story: what moved, what was said, and the demo's own part in it."""
        story.runs = self.api.get(f"issues/{story.issue['id']}/task-runs")[::-1]
        for run in story.runs:
            self._moved(story, run)
            if run["started_at"]:
                self._said(story, run)
        if story.runs and not story.acted and self.heard.get(story.runs[0]["id"], 0) > 0:
            self._act(story, story.runs[0])

    def _moved(self, story: Story, run: dict[str, Any]) -> None:
        if self.seen.get(run["id"]) == run["status"]:
            return
        self.seen[run["id"]] = run["status"]
        reason = run["failure_reason"] or run["not_retried_because"] or ""
        self.screen.live(story.key, run["status"], f"task {run['id'][-12:]} attempt {run['attempt']} {reason}")

    def _said(self, story: Story, run: dict[str, Any]) -> None:
        ended = run["completed_at"] is not None
        if self.heard.get(f"end:{run['id']}"):
            return
        since = self.heard.get(run["id"], 0)
        for message in self.api.get(f"tasks/{run['id']}/messages?since={since}"):
            self.heard[run["id"]] = message["seq"]
            for line in message["content"].splitlines():
                self.screen.live(story.key, run["agent_name"], line)
        self.heard[f"end:{run['id']}"] = int(ended)

    def _act(self, story: Story, run: dict[str, Any]) -> None:
        story.acted = True
        if story.say_meanwhile:
            self.api.post(f"issues/{story.issue['id']}/comments", {"content": story.say_meanwhile})
            self.screen.live(story.key, "you", f"“{story.say_meanwhile}” (while the task runs: one more follows it)")
        if story.cancel_meanwhile:
            self.api.post(f"tasks/{run['id']}/cancel", {"note": "the demo cancels this one"})
            self.screen.live(story.key, "you", "cancel it")
