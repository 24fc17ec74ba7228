"""What git knows of this checkout: committed files, revisions. It is only asked; nothing here changes a repository."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def ask_git(root: Path, *arguments: str) -> str | None:
    """What git answers; None where it refuses, and where there is no git."""
    answer = _answer(root, arguments)
    return None if answer is None else answer.decode("utf-8", errors="replace")


def committed(root: Path, path: Path) -> str | None:
    """A file of the project as it is in the last commit."""
    return read_committed(root, [("HEAD", str(path))])[0]


def read_committed(root: Path, wanted: Sequence[tuple[str, str]]) -> list[str | None]:
    """Of each (revision, path) the text, or None where that commit has no such file. One process reads them all."""
    asked = "".join(f"{revision}:./{path}\n" for revision, path in wanted)
    answer, at = _answer(root, ("cat-file", "--batch"), said=asked) or b"", 0
    found: list[str | None] = []
    while (end := answer.find(b"\n", at)) >= 0:
        *_, kind, size = [b"", *answer[at:end].split(b" ")]  # "NAME KIND SIZE" above the content, or "ASKED missing"
        at = end + 1
        if size == b"missing":
            found.append(None)
            continue
        text = answer[at : at + int(size)].decode("utf-8", errors="replace")
        found.append(text if kind == b"blob" else None)
        at += int(size) + 1
    return found or [None] * len(wanted)


def current_commit(root: Path) -> str:
    """The commit that is checked out, by its short name, and whether files that git tracks differ from it; nothing
    where there is no commit."""
    name = (ask_git(root, "rev-parse", "--short", "HEAD") or "").strip()
    differs = name and ask_git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{name}, changed" if differs else name


def changed(root: Path, *paths: Path) -> list[str]:
    """Of these files and folders, those files that are not as in the last commit; none where there is no repository."""
    told = ask_git(root, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--", *map(str, paths))
    return sorted(entry[3:] for entry in (told or "").split("\0") if entry)


def _answer(root: Path, arguments: Sequence[str], *, said: str = "") -> bytes | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, input=said.encode(), capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout
