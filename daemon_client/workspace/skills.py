"""Writes the skills of an agent where its CLI looks for them, and takes away exactly those again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from daemon_client.workspace import provenance

MANIFEST: Final = ".multica_sidecar_manifest.json"
MAX_CLASHES: Final = 64

Json = dict[str, Any]


class SkillError(Exception):
    """A skill cannot be written as it was sent; the text names it."""


def slug_of(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64] or "skill"


def check_path(path: str) -> PurePosixPath:
    """A path that stays inside its skill. Raises SkillError for an absolute, climbing or odd one."""
    pure = PurePosixPath(path)
    bad = not path or path != str(pure) or pure.is_absolute() or ".." in pure.parts or "\\" in path or "\0" in path
    if bad or pure.parts[:1] == (".",):
        raise SkillError(f"a skill holds the unusable path {path[:200]!r}")
    return pure


def with_front_matter(content: str, slug: str, description: str) -> str:
    """The skill's text with a front matter whose name is `slug`: CLIs find a skill by it, and ignore one without."""
    found = re.match(r"\A---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", content, re.DOTALL)
    header = found[1].splitlines() if found else []
    body = content[found.end() :] if found else content
    kept = [line for line in header if not re.match(r"name\s*:", line)]
    if not any(re.match(r"description\s*:", line) for line in kept):
        text = " ".join(description.split()) or slug
        kept.append('description: "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return "\n".join(["---", f"name: {slug}", *kept, "---", ""]) + body


def write_skills(root: Path, folder: Path, skills: Iterable[Mapping[str, Any]]) -> list[str]:
    """Write each skill to `folder/<slug>/` and record it in the root's manifest; returns the names in use.

    A name that is taken, by another skill or by the user's own directory, gets `-multica`, `-multica-2` and so on.
    """
    written: list[str] = []
    for skill in skills:
        slug = _free_slug(folder, slug_of(str(skill.get("name") or "")))
        target = folder / slug
        target.mkdir(parents=True)
        _record(root, target)
        files = skill.get("files")
        for file in files if isinstance(files, list) else []:
            if isinstance(file, dict) and isinstance(file.get("content"), str):
                path = target / check_path(str(file.get("path") or ""))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(file["content"], "utf-8", errors="replace")
        text = with_front_matter(str(skill.get("content") or ""), slug, str(skill.get("description") or ""))
        (target / "SKILL.md").write_text(text, "utf-8", errors="replace")
        written.append(slug)
    return written


def _free_slug(folder: Path, slug: str) -> str:
    names = (slug, f"{slug}-multica", *(f"{slug}-multica-{number}" for number in range(2, MAX_CLASHES + 1)))
    for name in names:
        if not (folder / name).exists() and not (folder / name).is_symlink():
            return name
    raise SkillError(f"there are too many skills with the name {slug!r}")


def _record(root: Path, directory: Path) -> None:
    manifest = provenance.read_json(root / MANIFEST)
    known = manifest.get("directories")
    entries = [*(known if isinstance(known, list) else []), str(directory.relative_to(root))]
    provenance.write_json(root / MANIFEST, {"directories": entries})


def remove_skills(root: Path) -> None:
    """Remove what an earlier task wrote here, as its manifest says, and directories that are empty then."""
    directories = provenance.read_json(root / MANIFEST).get("directories")
    for name in directories if isinstance(directories, list) else []:
        path = root / str(name)
        if ".." not in Path(str(name)).parts and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
            _remove_empty(path.parent, root / "workdir")
    (root / MANIFEST).unlink(missing_ok=True)


def _remove_empty(path: Path, stop: Path) -> None:
    while path != stop and stop in path.parents and path.is_dir() and not any(path.iterdir()):
        path.rmdir()
        path = path.parent
