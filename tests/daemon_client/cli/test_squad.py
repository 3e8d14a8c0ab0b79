"""`multica squad`: the leader's verdict."""

from __future__ import annotations

from tests.daemon_client.cli.conftest import Cli, Server


def test_activity_sends_the_verdict(server: Server, cli: Cli) -> None:
    """Q-20: the outcome and its reason go to the issue that the leader names; a refusal has its exit code."""
    server.on("GET", "/api/issues/ABC-1", {"id": "i-1", "identifier": "ABC-1", "title": "T"})
    server.on("POST", "/api/issues/i-1/squad-evaluated", {"outcome": "no_action"})
    server.on("POST", "/api/issues/i-1/squad-evaluated", {"error": "only a squad leader's task"}, 403)
    code, out, _ = cli("squad", "activity", "ABC-1", "no_action", "--reason", "a duplicate")
    assert (code, out) == (0, "ABC-1: no_action\n")
    assert server.bodies("POST") == [{"outcome": "no_action", "reason": "a duplicate"}]
    assert cli("squad", "activity", "ABC-1", "action")[0] == 3
    assert cli("squad", "activity", "ABC-1", "perhaps")[0] == 2
