"""Files and folders that are either whole or absent, whatever happens to the process that writes them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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
    finally:
        discard(temporary)


def publish(temporary: Path, path: Path) -> None:
    """Move a finished file or folder into place, in place of what stood there. Files reach the disk first."""
    if temporary.is_dir():
        # A folder cannot replace a full one in a single step: the old one steps aside and is deleted last.
        old = path.with_name(f".{path.name}.old{os.getpid()}")
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


def write_json(path: str | Path, value: Any) -> None:
    """JSON with a fixed layout: equal values give equal bytes."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
