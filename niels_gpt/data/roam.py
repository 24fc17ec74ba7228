"""A folder of markdown notes. A document is a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from niels_gpt.data.types import PretrainSample
from niels_gpt.split import split_rows


def list_roam_paths(root_dir: str) -> list[str]:
    """Absolute paths of all *.md files below `root_dir`, sorted, so that no file system decides the order.

    Links are followed, each real folder once (a loop ends). Hidden files and folders (.obsidian, .trash) are left out.
    """
    root = os.path.abspath(root_dir)
    if not os.path.isdir(root):
        raise FileNotFoundError(f"the notes folder {root_dir} does not exist")
    paths: list[str] = []
    seen: set[tuple[int, int]] = set()
    for folder, subfolders, files in os.walk(root, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            subfolders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        paths += [os.path.join(folder, name) for name in files if name.endswith(".md") and not name.startswith(".")]
    return sorted(paths)


def load_texts(paths: Sequence[str]) -> list[str]:
    """The files' texts, in the order given. Line ends are kept; bytes that are not UTF-8 become U+FFFD."""
    return [_read_note(path)[0] for path in paths]


def split_roam_paths(paths: Sequence[str], *, val_frac: float = 0.1, seed: int) -> tuple[list[str], list[str]]:
    """(train, val) by file."""
    train, val = split_rows(len(paths), val_frac=val_frac, seed=seed)
    return [paths[i] for i in train], [paths[i] for i in val]


def iter_roam(root_dir: str) -> Iterator[PretrainSample]:
    """Every note as a sample; meta holds its path below the folder and whether its bytes were UTF-8."""
    for path in list_roam_paths(root_dir):
        text, is_utf8 = _read_note(path)
        relative = Path(path).relative_to(os.path.abspath(root_dir)).as_posix()
        yield PretrainSample(text=text, source="roam", meta={"path": relative, "utf8": is_utf8})


def _read_note(path: str) -> tuple[str, bool]:
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
