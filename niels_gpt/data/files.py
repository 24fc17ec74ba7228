"""Files below a folder: found in an order that no file system decides, read whatever their bytes are."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path


def list_files(root_dir: str, suffixes: Collection[str]) -> list[str]:
    """Absolute paths of all files below `root_dir` that end in one of `suffixes`, sorted.

    Links are followed, each real folder once (a loop ends). Hidden files and folders (.obsidian, .trash, .git) are
    left out, and so is every file of another ending.
    """
    root = os.path.abspath(root_dir)
    if not os.path.isdir(root):
        raise FileNotFoundError(f"the folder {root_dir} does not exist")
    paths: list[str] = []
    seen: set[tuple[int, int]] = set()
    for folder, subfolders, files in os.walk(root, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            subfolders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        paths += [
            os.path.join(folder, name)
            for name in files
            if not name.startswith(".") and os.path.splitext(name)[1] in suffixes
        ]
    return sorted(paths)


def read_text(path: str) -> tuple[str, bool]:
    """(text, whether it was UTF-8). Line ends are kept; bytes that are not UTF-8 become U+FFFD."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise ValueError(f"{path} is a link to nothing: mend it or remove it") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): mend it or remove it") from error
    try:
        return data.decode("utf-8"), True
    except UnicodeDecodeError:
        return data.decode("utf-8", errors="replace"), False
