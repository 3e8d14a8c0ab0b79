"""Ends a run whose agent has gone silent, or that has used up its time."""

from __future__ import annotations

from daemon_client.agents.base import AgentEvent, ToolResult, ToolUse
from daemon_client.clock import Clock
from daemon_client.config import DaemonSettings
from daemon_client.engine.active import RunControl


class Watchdog:
    """Three limits, each off when 0: silence, silence while a tool works, and the wall clock of the whole run."""

    def __init__(self, settings: DaemonSettings, control: RunControl, clock: Clock) -> None:
        self._settings, self._control, self._clock = settings, control, clock
        self._started = self._heard = clock.monotonic()
        self._tools = 0

    def saw(self, event: AgentEvent) -> None:
        self._heard = self._clock.monotonic()
        if isinstance(event, ToolUse):
            self._tools += 1
        elif isinstance(event, ToolResult):
            self._tools = max(0, self._tools - 1)

    def _silence_limit(self) -> float:
        idle, tool = self._settings.agent_idle_watchdog, self._settings.agent_tool_watchdog
        return tool if self._tools else idle

    def run_once(self) -> float:
        """Trip what is over; seconds until the next look, which is at most half of the shortest limit."""
        now = self._clock.monotonic()
        silence, total = self._silence_limit(), self._settings.agent_timeout
        if total and now - self._started >= total:
            self._control.request("timeout", f"the agent used up its time of {total:g} s")
        elif silence and now - self._heard >= silence:
            what = "a tool call took" if self._tools else "the agent was silent for"
            self._control.request("idle_watchdog", f"{what} more than {silence:g} s")
        limits = [limit for limit in (silence, total, self._settings.agent_idle_watchdog) if limit]
        return min(limits) / 2 if limits else 3600.0

    async def run(self) -> None:
        while not self._control.stop.is_set():
            await self._clock.sleep(self.run_once())
