"""Access to git and to DVC's cache, and repair of DVC's own files after an interruption."""

import fcntl
import hashlib
import io
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from niels_gpt.files.atomic import discard, write_text
from niels_gpt.files.messages import read_text
from niels_gpt.pipeline.layout import LOCK


def ask_git(root: Path, *arguments: str) -> str | None:
    """Return git's output; None if the command fails or git is not installed."""
    answer = _answer(root, arguments)
    return None if answer is None else answer.decode("utf-8", errors="replace")


def committed(root: Path, path: Path) -> str | None:
    """Return a file's text in the last commit."""
    return read_committed(root, [("HEAD", str(path))])[0]


def read_committed(root: Path, wanted: Sequence[tuple[str, str]]) -> list[str | None]:
    """Return the text of each (revision, path), or None if that commit has no such file; uses one git process."""
    asked = "".join(f"{revision}:./{path}\n" for revision, path in wanted)
    answer = io.BytesIO(_answer(root, ("cat-file", "--batch"), said=asked) or b"")
    found: list[str | None] = []
    for header in answer:  # "NAME KIND SIZE", and the object on the next lines; or "ASKED missing"
        *_, kind, size = header.split()
        content = b"" if size == b"missing" else answer.read(int(size) + 1)[:-1]
        found.append(content.decode("utf-8", errors="replace") if kind == b"blob" else None)
    return found or [None] * len(wanted)


def current_commit(root: Path) -> str:
    """Return the short hash of HEAD, marked if tracked files differ from it; empty without a commit."""
    name = (ask_git(root, "rev-parse", "--short", "HEAD") or "").strip()
    differs = name and ask_git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{name}, changed" if differs else name


def changed(root: Path, *paths: Path) -> list[str]:
    """Return which of these files (or files in folders) differ from the last commit; empty without a repository."""
    told = ask_git(root, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--", *map(str, paths))
    return sorted(entry[3:] for entry in (told or "").split("\0") if entry)


def refuse_without_repository(root: Path) -> None:
    """Raise a ValueError without a git repository with a commit, a .dvc folder, and a committer identity."""
    if ask_git(root, "rev-parse", "--verify", "HEAD") is None:
        raise ValueError(
            "there is no git repository with a commit here, which DVC needs: `git init && git add -A && git commit -m "
            "start`, then run this again"
        )
    if not (root / ".dvc").is_dir():
        raise ValueError("there is no .dvc here: run `dvc init`, then this again")
    if not (ask_git(root, "var", "GIT_COMMITTER_IDENT") or "").strip():
        raise ValueError(
            "git has no committer: `git config user.name NAME` and `git config user.email ADDRESS`, then run this again"
        )


def refuse_uncommitted(root: Path, file: Path) -> None:
    """Raise a ValueError if the file has uncommitted changes, of which there is no other copy."""
    if ask_git(root, "status", "--porcelain", "--", str(file)):
        raise ValueError(
            f"{file} has changes that are not committed: `git commit -m mine {file}` keeps them, `git checkout {file}` "
            "discards them; then run this again"
        )


def refuse_unignored(root: Path, folder: str) -> None:
    """Raise a ValueError if git tracks a folder of private text, or the next `git add` would add it."""
    if ask_git(root, "ls-files", "--", folder):
        raise ValueError(
            f"{folder} is tracked by git, so your text would be published with the project: move it out of the "
            "project's folder, or give another"
        )
    if ask_git(root, "check-ignore", "-q", "--", folder) is None:
        raise ValueError(
            f"{folder} lies in the project's folder and git does not ignore it: `echo '/{folder}' >> .gitignore`, or "
            "move it out; then run this again"
        )


def commit_file(root: Path, file: Path, message: str) -> str:
    """Commit one file, without anything else that is staged, and return the short hash of the commit."""
    commit = ("git", "commit", "-q", "-m", message, "--only", "--", str(file))
    for command in (("git", "add", "--intent-to-add", "--", str(file)), commit):
        done = subprocess.run(command, cwd=root, capture_output=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).decode("utf-8", errors="replace").strip().splitlines()
            raise ValueError(
                f"git would not commit {file} ({said[-1] if said else done.returncode}): fix that, then run this again"
            )
    return (ask_git(root, "rev-parse", "--short", "HEAD") or "").strip()


def _answer(root: Path, arguments: Sequence[str], *, said: str = "") -> bytes | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, input=said.encode(), capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout


def dvc_config(root: Path) -> Mapping[str, Any]:
    """Return DVC's configuration of a checkout, including local and global files, by section."""
    from dvc.config import Config, ConfigError

    try:
        config: Mapping[str, Any] = Config(str(root / ".dvc"))
    except ConfigError as error:
        said = " ".join(str(error).split())
        raise ValueError(f"DVC's configuration cannot be read ({said}): fix .dvc/config") from error
    return config


class DvcCache:
    """DVC's local cache of file contents, by MD5."""

    @cached_property
    def files(self) -> Path:
        """Return the folder with the files; DVC's configuration may name a cache that several checkouts share."""
        return Path(dvc_config(Path())["cache"].get("dir", ".dvc/cache"), "files", "md5")

    def has(self, path: Path) -> bool:
        """Return whether the cache has a file, or all files of a folder."""
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        return all(self._place(_md5(file)).is_file() for file in files)

    def link(self, md5: str, folder: Path) -> bool:
        """Recreate a cached folder as symbolic links; return False, creating nothing, if the cache lacks a file."""
        try:
            files = {entry["relpath"]: self._place(entry["md5"]) for entry in json.loads(read_text(self._place(md5)))}
        except (OSError, ValueError, LookupError, TypeError):
            return False
        if not all(file.is_file() for file in files.values()):
            return False
        for name, file in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(file.resolve())
        return True

    def _place(self, md5: str) -> Path:
        return self.files / md5[:2] / md5[2:]


def _md5(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "md5").hexdigest()


# Repair of files that DVC rewrites in place.
#
# If DVC is killed while it writes dvc.lock or .dvc/tmp/rwlock, the file is left empty or truncated, and DVC refuses to
# run from then on. `mend` restores the committed dvc.lock, or none. Stages that finished since look changed to DVC,
# which restores them from its run cache: nothing is lost.

_TMP = Path(".dvc/tmp")
_BUSY = _TMP / "rwlock"  # which process reads and writes which path, as JSON
_GUARD = _TMP / "lock"  # held by DVC, except while a stage's command runs
_RUNS = Path(".dvc/cache/runs")


def read_records(text: str) -> dict[str, Any] | None:
    """Return the record of each stage in dvc.lock; None if the text is not complete.

    A truncated file ends within a line, or a record lacks a field. If it was cut between two records, DVC itself
    notices that the second is missing.
    """
    if not text.endswith("\n"):
        return None
    try:
        tree = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        stages: dict[str, Any] = tree["stages"]
        return stages if "schema" in tree and all(map(_is_recorded, stages.values())) else None
    except (yaml.YAMLError, AttributeError, KeyError, TypeError):
        return None


def _is_recorded(stage: dict[str, Any]) -> bool:
    files = [*stage.get("deps", []), *stage["outs"]]
    return "cmd" in stage and all(
        {"path", "md5", "size"} <= set(file) and ("nfiles" in file or not file["md5"].endswith(".dir"))
        for file in files
    )


def recorded(root: Path, stage: str) -> str:
    """Return what dvc.lock records of a stage, as text to compare; "" if it records nothing."""
    stages = read_records(_read(root / LOCK) or "") or {}
    return json.dumps(stages[stage], sort_keys=True) if stage in stages else ""


def broken_files(root: Path) -> list[str]:
    """Return the half-written files of DVC that keep it from running."""
    lock, busy = _read(root / LOCK), _read(root / _BUSY)
    try:
        broken = busy is not None and not isinstance(json.loads(busy), dict)
    except ValueError:
        broken = True
    locks = [LOCK] if lock is not None and read_records(lock) is None else []
    return list(map(str, [*locks, *([_BUSY] if broken else []), *_half_written_runs(root)]))


def mend(root: Path) -> list[str]:
    """Repair DVC's files and return a sentence for each repair; raise a ValueError if DVC holds its lock."""
    done = []
    with without_dvc(root):
        for name in broken_files(root):
            if name == str(LOCK):
                done.append(_mend_lock(root))
            else:
                discard(root / name)
                done.append(f"{name} was half-written and was deleted; DVC makes it again")
    return done


def _mend_lock(root: Path) -> str:
    if "<<<<<<< " in (_read(root / LOCK) or ""):
        raise ValueError("dvc.lock has both sides of a git merge: `git checkout --ours dvc.lock`, then `dvc repro`")
    whole = committed(root, LOCK) or ""
    if read_records(whole) is None:
        discard(root / LOCK)
        return f"{LOCK} was half-written and was deleted; `dvc repro` restores finished stages from its cache"
    write_text(root / LOCK, whole)
    return f"{LOCK} was half-written and is restored as committed; `dvc repro` restores later stages from its cache"


@contextmanager
def without_dvc(root: Path) -> Iterator[None]:
    """Hold DVC's lock, so that no file is being written and nothing DVC reads changes; a ValueError if DVC runs."""
    (root / _TMP).mkdir(parents=True, exist_ok=True)
    with (root / _GUARD).open("a+") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError("DVC is running here: wait for it, then try again") from error
        yield


def _half_written_runs(root: Path) -> list[Path]:
    """Return unfinished entries in the run cache, and folders without an entry.

    DVC takes the newest file of a folder for an entry, and crashes on an empty folder.
    """
    found: list[Path] = []
    for folder in sorted((root / _RUNS).glob("*/*")):
        entries = sorted(folder.iterdir())
        half = [entry for entry in entries if entry.name.startswith(".")]
        found += [folder] if half == entries else half
    return [path.relative_to(root) for path in found]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
