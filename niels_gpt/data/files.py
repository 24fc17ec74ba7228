"""Files below a folder: found in an order that no file system decides, read whatever their bytes are."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

_TOO_SHORT_TO_TELL = 64  # bytes; of so few the commonest encoding that is not UTF-8 is the better guess
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


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


def unpacked_suffix(path: str) -> str:
    """The ending of what is in the file: ".md" of a.md and of a.md.gz."""
    name, suffix = os.path.splitext(path)
    return os.path.splitext(name)[1] if suffix in (".gz", ".zst") else suffix


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked where its name says that it is packed."""
    import zstandard

    try:
        if path.endswith(".gz"):
            with gzip.open(path) as stream:
                yield cast(BinaryIO, stream)
        elif path.endswith(".zst"):
            with open(path, "rb") as packed, zstandard.open(packed, "rb") as unpacked:
                yield cast(BinaryIO, io.BufferedReader(unpacked))  # which knows lines
        else:
            with open(path, "rb") as plain:
                yield plain
    except FileNotFoundError as error:
        raise ValueError(f"{path} is a link to nothing: mend it or remove it") from error
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"{path} cannot be read or unpacked ({error}): mend it or remove it") from error


def decode_text(data: bytes) -> tuple[str, str]:
    """(text, encoding). UTF-8 where it is; else what its byte order mark or its statistics say. Line ends are kept."""
    from charset_normalizer import from_bytes

    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        pass
    best = None if len(data) < _TOO_SHORT_TO_TELL and data[:2] not in _UTF_16 else from_bytes(data).best()
    encoding = "cp1252" if best is None else best.encoding
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        return data.decode("utf-8", errors="replace"), "damaged UTF-8"
