"""Git, asked and told: what is tracked, ignored, changed, committed."""

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


def refuse_without_repository(root: Path) -> None:
    """Both are needed: DVC keeps its records in git's."""
    if ask_git(root, "rev-parse", "--verify", "HEAD") is None:
        raise ValueError(
            "there is no git repository with a commit here, which DVC needs: `git init && git add -A && git commit -m "
            "start`, then again"
        )
    if not (root / ".dvc").is_dir():
        raise ValueError("there is no .dvc here: `dvc init`, then again")
    if not (ask_git(root, "var", "GIT_COMMITTER_IDENT") or "").strip():
        raise ValueError(
            "git does not know who commits: `git config user.name NAME` and `git config user.email ADDRESS`, then again"
        )


def refuse_uncommitted(root: Path, file: Path) -> None:
    """Changes that nothing else has a copy of."""
    if ask_git(root, "status", "--porcelain", "--", str(file)):
        raise ValueError(
            f"{file} has changes that are not committed: `git commit -m mine {file}` keeps them, `git checkout {file}` "
            "takes them back; then again"
        )


def refuse_unignored(root: Path, folder: str) -> None:
    """Private text in the project's folder that git tracks, or would take along with the next `git add`."""
    if ask_git(root, "ls-files", "--", folder):
        raise ValueError(
            f"{folder} is tracked by git, so that your text would go wherever the project goes: move it out of the "
            "project's folder, or give another"
        )
    if ask_git(root, "check-ignore", "-q", "--", folder) is None:
        raise ValueError(
            f"{folder} lies in the project's folder and git does not ignore it: `echo '/{folder}' >> .gitignore`, or "
            "move it out; then again"
        )


def commit_file(root: Path, file: Path, message: str) -> str:
    """Commit one file and nothing else that is staged; the commit's short name."""
    commit = ("git", "commit", "-q", "-m", message, "--only", "--", str(file))
    for command in (("git", "add", "--intent-to-add", "--", str(file)), commit):
        done = subprocess.run(command, cwd=root, capture_output=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).decode("utf-8", errors="replace").strip().splitlines()
            raise ValueError(
                f"git would not commit {file} ({said[-1] if said else done.returncode}): mend that, then again"
            )
    return (ask_git(root, "rev-parse", "--short", "HEAD") or "").strip()


def _answer(root: Path, arguments: Sequence[str], *, said: str = "") -> bytes | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, input=said.encode(), capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout
