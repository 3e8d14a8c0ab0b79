"""The repository cache with real repositories: shared, healed, and never at the cost of anybody's work."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon_client.workspace import repo_locks
from daemon_client.workspace.repo_cache import RepoBusy, RepoCache, RepoError
from tests.daemon_client.workspace.conftest import Git, fingerprint, make_task
from tests.support.wait import until, until_async

BRANCH = "agent/my-agent/000000000001"


@pytest.fixture
def cache(tmp_path: Path, environ: dict[str, str]) -> RepoCache:
    return RepoCache(tmp_path / "root", environ)


async def check_out(cache: RepoCache, url: object, workdir: Path, number: int = 1, ref: str = ""):  # type: ignore[no-untyped-def]
    workdir.mkdir(exist_ok=True)
    return await cache.checkout(
        workspace_id="ws-1", url=str(url), ref=ref, workdir=workdir, task=make_task(number), agent_name="My Agent"
    )


async def test_a_checkout_is_a_worktree_with_a_branch_of_its_own(
    cache: RepoCache, remote: Path, tmp_path: Path, git: Git
) -> None:
    """Y-01, Y-03: `.git` points into the cache, the branch names agent and task, the base is the default."""
    made = await check_out(cache, remote, tmp_path / "w")
    assert made.path == tmp_path / "w" / "project"
    assert made.branch_name == BRANCH == git(made.path, "branch", "--show-current")
    assert (made.path / "file.txt").read_text() == "version 2\n"
    bare = cache.bare_path("ws-1", str(remote))
    assert (made.path / ".git").read_text().startswith(f"gitdir: {bare}")
    assert git(made.path, "remote", "get-url", "origin") == str(remote)
    again = await check_out(cache, remote, tmp_path / "w")
    assert (again.path, again.branch_name) == (made.path, made.branch_name)


async def test_the_cache_is_partial_where_the_remote_can(
    cache: RepoCache, remote: Path, tmp_path: Path, git: Git
) -> None:
    """Y-04, Y-06: file contents come on demand; a remote that cannot filter gives a whole clone, known as such."""
    url = f"file://{remote}"
    made = await check_out(cache, url, tmp_path / "w")
    bare = cache.bare_path("ws-1", url)
    missing = git(bare, "rev-list", "--objects", "--all", "--missing=print")
    assert "\n?" in missing
    assert git(made.path, "log", "-p", "--format=%s", "v1").startswith("commit 1")
    git(remote, "config", "uploadpack.allowFilter", "false")
    whole = RepoCache(tmp_path / "other", cache._git._env)
    await check_out(whole, url, tmp_path / "w2")
    bare = whole.bare_path("ws-1", url)
    assert "\n?" not in git(bare, "rev-list", "--objects", "--all", "--missing=print")
    assert "promisor" not in (bare / "config").read_text()


async def test_parallel_tasks_do_not_clash(cache: RepoCache, remote: Path, tmp_path: Path, git: Git) -> None:
    """Y-03: eight tasks at once over one cold cache: eight branches, eight directories, one clone."""
    made = await asyncio.gather(*(check_out(cache, remote, tmp_path / f"w{number}", number) for number in range(1, 9)))
    assert len({one.branch_name for one in made}) == len({one.path for one in made}) == 8
    assert all((one.path / "file.txt").is_file() for one in made)
    assert len(list(cache.bare_path("ws-1", str(remote)).parent.glob("*.git"))) == 1


@pytest.mark.parametrize(
    ("ref", "content"),
    [("feature/x", "version 1\n"), ("v1", "version 1\n"), ("trunk", "version 2\n"), ("", "version 2\n")],
)
async def test_refs(cache: RepoCache, remote: Path, tmp_path: Path, ref: str, content: str) -> None:
    made = await check_out(cache, remote, tmp_path / "w", ref=ref)
    assert (made.path / "file.txt").read_text() == content


async def test_a_commit_as_ref(cache: RepoCache, remote: Path, tmp_path: Path, git: Git) -> None:
    first = git(remote, "rev-parse", "v1^{commit}")
    made = await check_out(cache, remote, tmp_path / "w", ref=first[:10])
    assert git(made.path, "rev-parse", "HEAD") == first


@pytest.mark.parametrize(
    "ref", ["--upload-pack=x", "a..b", "x.lock", "refs/../x", "a b", "a\nb", "no-such-branch", "-", "@{-1}", "HEAD~1"]
)
async def test_hostile_refs(cache: RepoCache, remote: Path, tmp_path: Path, ref: str) -> None:
    """A ref is a name and never an option, an expression or a path; nothing is left behind by a refused one."""
    with pytest.raises(RepoError):
        await check_out(cache, remote, tmp_path / "w", ref=ref)
    assert list((tmp_path / "w").iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "-x",
        "--upload-pack=touch /tmp/x",
        "ext::sh -c touch% /tmp/x",
        "fd::17",
        "../up",
        "relative/path",
        "ftp://h/x",
        "/no/such/repo",
        "a\nb",
        "https://",
    ],
)
async def test_hostile_urls(cache: RepoCache, tmp_path: Path, url: str) -> None:
    """Only addresses of repositories are let through; transports that run commands are refused before git sees them."""
    with pytest.raises(RepoError):
        await check_out(cache, url, tmp_path / "w")
    assert list((tmp_path / "w").iterdir()) == []


async def test_fetching_brings_new_commits_and_a_dead_remote_does_not_stop_work(
    cache: RepoCache, remote: Path, tmp_path: Path, git: Git
) -> None:
    """Each checkout starts from the newest state; when the remote is away, from the last one known."""
    await check_out(cache, remote, tmp_path / "w1", 1)
    work = tmp_path / "origin-work"
    (work / "file.txt").write_text("version 3\n")
    git(work, "commit", "--quiet", "-am", "commit 3")
    git(work, "push", "--quiet", str(remote), "trunk")
    made = await check_out(cache, remote, tmp_path / "w2", 2)
    assert (made.path / "file.txt").read_text() == "version 3\n"
    remote.rename(tmp_path / "away")
    made = await check_out(cache, remote, tmp_path / "w3", 3)
    assert (made.path / "file.txt").read_text() == "version 3\n"


async def test_an_agent_can_commit_and_push(cache: RepoCache, remote: Path, tmp_path: Path, git: Git) -> None:
    made = await check_out(cache, remote, tmp_path / "w")
    (made.path / "new.txt").write_text("x")
    git(made.path, "add", ".")
    git(made.path, "commit", "--quiet", "-m", "work")
    git(made.path, "push", "--quiet", "origin", "HEAD")
    assert git(remote, "rev-parse", BRANCH) == git(made.path, "rev-parse", "HEAD")


# --- work that is not on the remote ------------------------------------------------------------------------------


async def test_a_clean_checkout_of_an_earlier_task_moves_on(
    cache: RepoCache, remote: Path, tmp_path: Path, git: Git
) -> None:
    """N-10: the directory is used again without a new transfer, on the next task's branch, at the newest base."""
    first = await check_out(cache, remote, tmp_path / "w", 1, ref="v1")
    second = await check_out(cache, remote, tmp_path / "w", 2)
    assert (second.path, second.branch_name) == (first.path, "agent/my-agent/000000000002")
    assert (second.path / "file.txt").read_text() == "version 2\n"


@pytest.mark.parametrize("kind", ["uncommitted", "untracked", "committed", "detached"])
async def test_unpushed_work_is_carried_over(
    cache: RepoCache, remote: Path, tmp_path: Path, git: Git, kind: str
) -> None:
    """The next task finds what the one before left, in every form that work can have; nothing is reset or cleaned."""
    path = (await check_out(cache, remote, tmp_path / "w", 1)).path
    if kind == "detached":
        git(path, "checkout", "--quiet", "--detach")
    (path / ("other.txt" if kind == "untracked" else "file.txt")).write_text("mine\n")
    if kind in ("committed", "detached"):
        git(path, "commit", "--quiet", "-am", "mine")
    made = await check_out(cache, remote, tmp_path / "w", 2)
    assert git(path, "branch", "--show-current") == made.branch_name == "agent/my-agent/000000000002"
    assert "earlier work" in made.note
    assert (path / ("other.txt" if kind == "untracked" else "file.txt")).read_text() == "mine\n"


async def test_a_ref_never_costs_uncommitted_work(cache: RepoCache, remote: Path, tmp_path: Path, git: Git) -> None:
    """Asked to start elsewhere while there are changes, it refuses; commits stay on their branch."""
    path = (await check_out(cache, remote, tmp_path / "w", 1)).path
    (path / "file.txt").write_text("mine\n")
    with pytest.raises(RepoError, match="not committed"):
        await check_out(cache, remote, tmp_path / "w", 2, ref="v1")
    assert (path / "file.txt").read_text() == "mine\n"
    git(path, "commit", "--quiet", "-am", "mine")
    await check_out(cache, remote, tmp_path / "w", 2, ref="v1")
    assert (path / "file.txt").read_text() == "version 1\n"
    assert git(path, "show", f"{BRANCH}:file.txt") == "mine"


async def test_an_agent_that_left_its_branch_is_left_alone(
    cache: RepoCache, remote: Path, tmp_path: Path, git: Git
) -> None:
    path = (await check_out(cache, remote, tmp_path / "w", 1)).path
    (path / "file.txt").write_text("mine\n")
    git(path, "commit", "--quiet", "-am", "mine")
    git(path, "checkout", "--quiet", "-b", "side", "origin/trunk")
    made = await check_out(cache, remote, tmp_path / "w", 1)
    assert made.branch_name == "side" == git(path, "branch", "--show-current")
    assert git(path, "show", f"{BRANCH}:file.txt") == "mine"


async def test_commits_survive_a_removed_directory(cache: RepoCache, remote: Path, tmp_path: Path, git: Git) -> None:
    """The directory was removed by hand: one prune, the same branch, its commits, and no second branch."""
    path = (await check_out(cache, remote, tmp_path / "w", 1)).path
    (path / "file.txt").write_text("mine\n")
    git(path, "commit", "--quiet", "-am", "mine")
    shutil.rmtree(path)
    for _ in range(2):
        made = await check_out(cache, remote, tmp_path / "w", 1)
        assert (made.branch_name, (path / "file.txt").read_text()) == (BRANCH, "mine\n")
    branches = git(cache.bare_path("ws-1", str(remote)), "for-each-ref", "--format=%(refname:short)", "refs/heads")
    assert branches == BRANCH


async def test_a_branch_of_a_failed_attempt_is_no_obstacle(
    cache: RepoCache, remote: Path, tmp_path: Path, git: Git
) -> None:
    bare = await cache.ensure("ws-1", str(remote))
    git(bare, "branch", BRANCH, "refs/tags/v1")
    made = await check_out(cache, remote, tmp_path / "w", 1)
    assert (made.branch_name, (made.path / "file.txt").read_text()) == (BRANCH, "version 2\n")


async def test_foreign_directories_are_not_touched(cache: RepoCache, remote: Path, tmp_path: Path, git: Git) -> None:
    """Something with the repository's name is in the way: another place is used; a link is never followed."""
    workdir = tmp_path / "w"
    (workdir / "project").mkdir(parents=True)
    (workdir / "project" / "precious").write_text("x")
    made = await check_out(cache, remote, workdir)
    assert made.path.name.startswith("project-")
    assert (workdir / "project" / "precious").read_text() == "x"
    outside, linked = tmp_path / "outside", tmp_path / "w2"
    outside.mkdir()
    linked.mkdir()
    (linked / "project").symlink_to(outside)
    assert (await check_out(cache, remote, linked, 2)).path.name.startswith("project-")
    assert list(outside.iterdir()) == []


async def test_two_repositories_of_one_name(cache: RepoCache, remote: Path, tmp_path: Path) -> None:
    other = tmp_path / "remotes" / "other" / "project.git"
    shutil.copytree(remote, other)
    one, two = await check_out(cache, remote, tmp_path / "w"), await check_out(cache, other, tmp_path / "w")
    assert one.path != two.path
    assert (await check_out(cache, other, tmp_path / "w")).path == two.path


async def test_a_repository_without_commits_says_so(cache: RepoCache, tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "--quiet", "--bare", "empty.git")
    with pytest.raises(RepoError, match="no commits"):
        await check_out(cache, tmp_path / "empty.git", tmp_path / "w")


# --- locks, crashes, damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["packed-refs.lock", "refs/heads/agent/my-agent/000000000002.lock", "refs/remotes/origin/trunk.lock"]
)
async def test_locks_of_dead_git_processes_are_removed(
    cache: RepoCache, remote: Path, tmp_path: Path, git: Git, name: str
) -> None:
    """git was killed and left its lock: the next checkout removes it and goes on."""
    await check_out(cache, remote, tmp_path / "w1", 1)
    bare = cache.bare_path("ws-1", str(remote))
    work = tmp_path / "origin-work"
    git(work, "commit", "--quiet", "--allow-empty", "-m", "more")
    git(work, "push", "--quiet", str(remote), "trunk")
    lock = bare / name
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    made = await check_out(cache, remote, tmp_path / "w2", 2)
    assert made.branch_name == "agent/my-agent/000000000002"
    assert git(made.path, "rev-parse", "HEAD") == git(remote, "rev-parse", "trunk")


def start(command: list[str], cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
def living_git(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """git processes that work in a directory until the test ends."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


async def test_locks_of_living_git_processes_are_respected(
    cache: RepoCache, remote: Path, tmp_path: Path, living_git: list[subprocess.Popen[bytes]]
) -> None:
    """While any git works in the clone or one of its working copies, no lock is taken away from it."""
    path = (await check_out(cache, remote, tmp_path / "w1", 1)).path
    bare = cache.bare_path("ws-1", str(remote))
    lock = bare / "packed-refs.lock"
    lock.touch()
    command = ["git", "cat-file", "--batch"]
    living_git.append(start(command, path))
    until(lambda: b"cat-file" in Path(f"/proc/{living_git[0].pid}/cmdline").read_bytes())
    assert repo_locks.remove_stale_git_locks(bare) == []
    assert lock.exists()
    living_git[0].communicate()
    assert repo_locks.remove_stale_git_locks(bare) == [lock]


async def test_a_half_made_clone_is_no_clone(cache: RepoCache, remote: Path, tmp_path: Path) -> None:
    """Killed while cloning: what is left is swept away, and never taken for the cache."""
    bare = cache.bare_path("ws-1", str(remote))
    attempt = bare.with_name(f".{bare.name}.new-1")
    attempt.mkdir(parents=True)
    (attempt / "HEAD").write_text("ref: ")
    await check_out(cache, remote, tmp_path / "w")
    assert not attempt.exists()


@pytest.mark.parametrize("damage", ["config", "HEAD", "packs"])
async def test_a_damaged_clone_is_made_anew_and_kept_aside(
    cache: RepoCache, remote: Path, tmp_path: Path, damage: str
) -> None:
    """A broken cache is detected and rebuilt once; the broken one is kept, for a commit may be nowhere else."""
    await check_out(cache, remote, tmp_path / "w1", 1)
    bare = cache.bare_path("ws-1", str(remote))
    if damage == "packs":
        for pack in bare.glob("objects/pack/*"):
            pack.chmod(0o644)
            pack.write_bytes(b"")
    else:
        (bare / damage).write_bytes(b"\0\0\0")
    made = await check_out(cache, remote, tmp_path / "w2", 2)
    assert (made.path / "file.txt").read_text() == "version 2\n"
    assert len(list(bare.parent.glob(".*.damaged-*"))) == 1
    await check_out(cache, remote, tmp_path / "w3", 3)
    assert len(list(bare.parent.glob(".*.damaged-*"))) == 1


async def test_a_busy_repository_is_said_to_be_busy(
    cache: RepoCache, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a long clone nobody waits without an end, neither in this process nor behind another daemon."""
    monkeypatch.setattr(repo_locks.RepoLocks.hold.__wrapped__, "__defaults__", (0.2,))  # type: ignore[attr-defined]
    bare = cache.bare_path("ws-1", str(remote))
    async with cache._locks.hold(bare):
        with pytest.raises(RepoBusy):
            await check_out(cache, remote, tmp_path / "w")
    lock = bare.with_name(bare.name + ".lock")
    code = f"import fcntl,sys; f=open({str(lock)!r}); fcntl.flock(f, 2); print('held', flush=True); sys.stdin.read()"
    holder = start([sys.executable, "-c", code], tmp_path)
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(RepoBusy):
        await check_out(cache, remote, tmp_path / "w")
    holder.communicate()
    await check_out(cache, remote, tmp_path / "w")


async def test_nobody_is_asked_for_a_password(tmp_path: Path, environ: dict[str, str]) -> None:
    """A remote that wants a login fails at once, names the host and shows no secret; git's own questions are off."""
    refusing = tmp_path / "bin"
    refusing.mkdir()
    asked = tmp_path / "asked"
    ssh = refusing / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$@" > {asked}\necho "git@host: Permission denied (publickey)." >&2\nexit 255\n')
    ssh.chmod(0o755)
    env = environ | {"PATH": f"{refusing}:{environ['PATH']}", "SSH_ASKPASS": "/bin/true", "DISPLAY": ":0"}
    cache = RepoCache(tmp_path / "root", env)
    with pytest.raises(RepoError, match=r"example\.org") as refused:
        await check_out(cache, "ssh://user:hunter22secret@example.org/team/x.git", tmp_path / "w")
    assert "hunter22secret" not in str(refused.value)
    assert "BatchMode=yes" in asked.read_text()
    assert cache._git._env["GIT_TERMINAL_PROMPT"] == "0"
    assert "SSH_ASKPASS" not in cache._git._env


async def test_the_users_configuration_stays_as_it_is(
    cache: RepoCache, remote: Path, tmp_path: Path, home: Path, git: Git
) -> None:
    """Clones, checkouts and failures write nothing below the home, and hooks of the environment reach no command."""
    before = fingerprint(home)
    cache._git._env["GIT_DIR"] = cache._git._env.pop("GIT_DIR", "")
    del cache._git._env["GIT_DIR"]
    made = await check_out(cache, remote, tmp_path / "w")
    with pytest.raises(RepoError):
        await check_out(cache, "/no/such/repo", tmp_path / "w")
    assert fingerprint(home) == before
    assert git(made.path, "config", "user.email") == "person@example.org"


async def test_a_cancelled_clone_ends_its_git(tmp_path: Path, environ: dict[str, str]) -> None:
    """A clone that nobody waits for any more does not go on in the background."""
    tools, pid = tmp_path / "bin", tmp_path / "pid"
    tools.mkdir()
    (tools / "ssh").write_text(f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}\nexec sleep 600\n")
    (tools / "ssh").chmod(0o755)
    cache = RepoCache(tmp_path / "root", environ | {"PATH": f"{tools}:{environ['PATH']}"})
    task = asyncio.create_task(cache.ensure("ws-1", "ssh://example.org/x.git"))
    await until_async(pid.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())
    assert os.listdir(tmp_path / "root" / ".repos" / "ws-1") == ["example.org+x.git.lock"]
