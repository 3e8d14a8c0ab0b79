"""Names from outside become names on disk: one for one thing, different for different ones, always harmless."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon_client.workspace.repo_names import (
    agent_slug,
    bare_dir_name,
    branch_name,
    check_ref,
    check_url,
    repo_name,
    task_key,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://Example.org/team/x.git", "https://example.org/team/x"),
        ("git@example.org:team/x.git", "ssh://git@example.org/team/x"),
        ("https://example.org/team/x/", "https://user:secret@example.org/team/x.git"),
    ],
)
def test_one_place_has_one_name(one: str, other: str) -> None:
    assert bare_dir_name(check_url(one)) == bare_dir_name(check_url(other))


def test_different_places_have_different_names() -> None:
    urls = [
        "https://example.org/a/b", "https://example.org/a+b", "https://example.org:8443/a/b", "https://example.org/a-b",
        "https://example.org/a%2Fb", "https://example.org/A/b", "/example.org/a/b", "https://example.org/a/b/c",
        "/.hidden",
        *(f"https://example.org/{'long' * 60}{number}" for number in range(3)),
    ]  # fmt: skip
    assert len({bare_dir_name(url) for url in urls}) == len(urls)
    assert "secret" not in bare_dir_name("https://u:secret@example.org/x")


@given(st.text(max_size=300))
def test_whatever_it_is_the_name_is_harmless(text: str) -> None:
    """No URL leads out of the cache, to a hidden file, or to a name that is too long for the file system."""
    for name in (bare_dir_name(text), repo_name(text)):
        assert "/" not in name
        assert not name.startswith((".", "-"))
        assert 0 < len(name.encode()) <= 255
    assert repo_name(text).lower() != "git"


@given(st.text(max_size=60), st.text(max_size=60))
def test_branches_are_valid_for_git(agent: str, task: str) -> None:
    assert check_ref(branch_name(agent, task)).startswith("agent/")


def test_keys_and_slugs() -> None:
    """N-02: the short name of a task is the tail of its id, known before anything is prepared."""
    assert task_key("6F0C2D1E-9b3a-4c57-8f21-0a1b2c3d4e5f") == "0a1b2c3d4e5f"
    assert agent_slug("  Ünï Böt -- No. 7 ") == "n-b-t-no-7"
    assert agent_slug("日本") == "agent"
    assert len(agent_slug("x" * 99)) == 30
