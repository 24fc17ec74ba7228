"""Atomic writes: a file or folder is complete or absent, even if the writing process is killed."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from niels_gpt.files.messages import name_file


def temporary_beside(path: str | Path) -> Path:
    """Return a hidden name with the process id in the folder of `path`, since only renames within one are atomic."""
    path = Path(path)
    return path.with_name(f".{path.name}.tmp{os.getpid()}")


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` if the block ends normally, and is deleted otherwise."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    discard(temporary)  # left by a killed process with the same process id
    try:
        yield temporary
        publish(temporary, path)
    except OSError as error:
        name_file(error, path)
        raise
    finally:
        discard(temporary)


def write_text(path: str | Path, text: str) -> None:
    """Write a file of text atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def publish(temporary: Path, path: Path) -> None:
    """Rename a finished file or folder to `path`, replacing what is there; readers never see a part of it.

    A file is fsynced first. A folder, which may hold gigabytes, is not: its readers check it against hashes.
    """
    if temporary.is_dir():
        # A rename cannot replace a non-empty folder, so the old one is renamed first and deleted last. Its name is that
        # of a temporary folder: if this process is killed in between, `sweep` deletes it.
        old = path.with_name(f"{temporary_beside(path).name}.old")
        discard(old)
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        discard(old)
        return
    with temporary.open("rb") as f:
        os.fsync(f.fileno())
    os.replace(temporary, path)


def discard(path: Path) -> None:
    """Delete a file or folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Delete temporary files and folders below `folder` whose process no longer runs on this machine."""
    for path in folder.rglob(".*.tmp*"):
        pid = path.name.rpartition(".tmp")[2].removesuffix(".old")
        if pid.isdigit() and not _lives(int(pid)):
            discard(path)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # of another user's process
    return True


def json_text(value: Any) -> str:
    """Return JSON in a fixed layout with sorted keys, so that equal values give equal bytes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file atomically, in the layout of `json_text`."""
    write_text(path, json_text(value))
