"""Git, asked and told: what is tracked, ignored, changed, committed."""

from __future__ import annotations

import subprocess
from pathlib import Path


def ask_git(root: Path, *arguments: str) -> str | None:
    """What it says; None where it refuses, or is not there."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.decode("utf-8", errors="replace")


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
