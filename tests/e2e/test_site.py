"""The stack of the end-to-end tests leaves nothing behind."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from tests.support.stack import Site, marked


def test_site_answers_and_ends_with_all_of_its_processes(short_folder: Path) -> None:
    with Site(short_folder / "one", replicas=2) as site:
        for server in site.servers:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5) as answer:
                assert answer.status == 200
        accounts = site.account(), site.account()
        assert accounts[0].workspace_id != accounts[1].workspace_id
        assert marked("MULTICA_STATE_DIR", str(site.folder / "state"))
    assert not marked("MULTICA_STATE_DIR", str(site.folder / "state"))
