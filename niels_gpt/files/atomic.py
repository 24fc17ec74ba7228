"""Atomic writes: files and folders are whole or absent, whatever happens to the process that writes them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from niels_gpt.files.messages import name_file


def temporary_beside(path: str | Path) -> Path:
    """A name next to `path` (a rename within one folder is atomic), marked by a dot and the process id."""
    path = Path(path)
    return path.with_name(f".{path.name}.tmp{os.getpid()}")


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Write to the path this yields; `path` is replaced when the block ends, and untouched when it raises."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    try:
        yield temporary
        publish(temporary, path)
    except OSError as error:
        name_file(error, path)
        raise
    finally:
        discard(temporary)


def publish(temporary: Path, path: Path) -> None:
    """Rename a finished file or folder, in place of what stood there: at no instant is a part of it to be seen.

    A file has reached the disk by then. A folder, which may be gigabytes, is not waited for: what is read back from
    one is checked against hashes.
    """
    if temporary.is_dir():
        # A folder cannot replace a full one in a single step: the old one steps aside, under a name that the next
        # writer takes for a killed one's, and is deleted last.
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
    """Delete a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Delete the temporary files below a folder whose writers are gone; those of processes that live are left."""
    for path in folder.rglob(".*.tmp*"):
        pid = path.name.rpartition(".tmp")[2].removesuffix(".old")
        if pid.isdigit() and not _lives(int(pid)):
            discard(path)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def json_text(value: Any) -> str:
    """JSON with a fixed layout: equal values give equal bytes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_json(path: str | Path, value: Any) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json_text(value), encoding="utf-8")
