"""Finding agent CLIs: by setting or PATH, with a version that is new enough."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from daemon_client.agents import registry
from daemon_client.agents.registry import Descriptor, Detected, adapter_for, detect, detect_profile, parse_version
from daemon_client.config import DaemonSettings
from tests.support.wait import until


def program(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def claude_of(found: list[Detected]) -> Detected:
    return next(one for one in found if one.provider == "claude")


def settings(tmp_path: Path, **environ: str) -> DaemonSettings:
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path)} | environ
    return DaemonSettings(server_url="http://127.0.0.1", token="", daemon_id="d", environ=env)


@pytest.mark.parametrize(
    ("body", "version", "reason"),
    [
        ("echo '2.1.332 (Claude Code)'", "2.1.332 (Claude Code)", ""),
        ("echo 'a warning'; echo 'v2.0.0'", "v2.0.0", ""),
        ("echo 1.0.99", "1.0.99", registry.BELOW_MINIMUM),
        ("echo dev", "dev", registry.UNAVAILABLE),
        ("exit 1", "", registry.UNAVAILABLE),
    ],
)
def test_verdicts(tmp_path: Path, body: str, version: str, reason: str) -> None:
    """A CLI below its minimum is skipped for that; one that tells nothing usable is only unavailable."""
    path = program(tmp_path / "bin", "claude", body)
    found = claude_of(detect(settings(tmp_path)))
    assert (found.provider, found.path, found.version, found.skipped_reason) == ("claude", str(path), version, reason)
    assert found.usable is not bool(reason)
    assert found.usable or found.detail


def test_a_file_that_cannot_run(tmp_path: Path) -> None:
    path = tmp_path / "bin" / "claude"
    path.parent.mkdir()
    path.write_bytes(b"\x7fELF garbage")
    path.chmod(0o755)
    found = claude_of(detect(settings(tmp_path)))
    assert found.skipped_reason == registry.NOT_EXECUTABLE


def test_where_it_is_looked_for(tmp_path: Path) -> None:
    """The setting wins over PATH; a setting that is wrong is a miss and no search; wrappers of ours are passed over."""
    program(tmp_path / ".multica" / "hooks", "claude", "echo 9.9.9")
    ours = program(tmp_path / "bin", "claude", "echo 2.1.0")
    other = program(tmp_path / "opt", "my-claude", "echo 2.2.0")
    path = f"{tmp_path}/.multica/hooks:{tmp_path}/bin:/usr/bin:/bin"
    assert claude_of(detect(settings(tmp_path, PATH=path))).path == str(ours)
    assert claude_of(detect(settings(tmp_path, MULTICA_CLAUDE_PATH=str(other)))).path == str(other)
    missing = claude_of(detect(settings(tmp_path, MULTICA_CLAUDE_PATH="/no/such/claude")))
    assert (missing.skipped_reason, missing.path) == (registry.NOT_FOUND, "")


def test_probes_run_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight slow CLIs take as long as one, and the answer has a stable order."""
    names = [f"slow{number}" for number in range(8)]
    for name in names:
        program(tmp_path / "bin", name, "sleep 0.4; echo 1.2.3")
    table = {name: Descriptor(name, name, "plain") for name in reversed(names)}
    monkeypatch.setattr(registry, "DESCRIPTORS", table)
    before = time.monotonic()
    found = detect(settings(tmp_path))
    assert time.monotonic() - before < 2.4
    assert [(one.provider, one.version) for one in found] == [(name, "1.2.3") for name in names]


def test_a_probe_that_hangs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends after its limit, and what it had started with it."""
    monkeypatch.setattr(registry, "PROBE_TIMEOUT", 0.2)
    monkeypatch.setattr(registry, "SLOW_PROBE", 0.1)
    program(tmp_path / "bin", "claude", f"echo $$ > {tmp_path}/pid; sleep 600; echo 2.1.0")
    found = claude_of(detect(settings(tmp_path)))
    assert found.skipped_reason == registry.UNAVAILABLE
    group = int((tmp_path / "pid").read_text())

    def gone() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    until(gone)


def test_a_profile_is_looked_for_and_never_run(tmp_path: Path) -> None:
    """EX-06: a command of a profile counts when it is there. Run to see, it might do a whole task."""
    tool = program(tmp_path / "bin", "tool", f"touch {tmp_path}/ran")
    environ = settings(tmp_path).environ
    found = detect_profile("tool", environ)
    assert (found.usable, found.path) == (True, str(tool))
    assert detect_profile("no-such-tool", environ).skipped_reason == registry.NOT_FOUND
    assert not (tmp_path / "ran").exists()


def test_adapters() -> None:
    """EX-03: providers and families lead to an adapter; an unknown one is a lookup error and nothing else."""
    assert (adapter_for("claude").name, adapter_for("plain").name) == ("claude", "plain")
    with pytest.raises(LookupError):
        adapter_for("unheard-of")


def test_versions() -> None:
    assert parse_version("2.1.100 (Claude Code)") == (2, 1, 100)
    assert parse_version("codex-cli 0.171.0") == (0, 171, 0)
    assert parse_version("1.2") is None
