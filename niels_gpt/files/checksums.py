"""Checksums: files that others point into are believed only when they are what was written.

A number that has rotted is still a number. What a stage writes is therefore listed beside it with sizes and hashes,
and whoever reads it compares first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from niels_gpt.files.damage import Damaged
from niels_gpt.files.sentences import read_text

SUMS = "SHA256SUMS"


def sha256_file(path: str | Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def list_files(folder: Path, pattern: str, *, published: str) -> list[dict[str, Any]]:
    """path (below `published`, where the folder will stand), bytes and sha256 of the files that match, in order."""
    return [
        {
            "path": f"{published}/{path.relative_to(folder).as_posix()}",
            "bytes": path.stat().st_size,
            "sha256": sha256_file(path),
        }
        for path in sorted(folder.glob(pattern))
    ]


def changed_files(files: Sequence[Mapping[str, Any]], *, root: Path) -> dict[str, str]:
    """Of listed files, below `root`, those that are not what they were when the list was made: {path: in a word}."""
    bad = {}
    for file in files:
        path = root / file["path"]
        if not path.is_file():
            bad[file["path"]] = "missing"
        elif path.stat().st_size != file["bytes"] or sha256_file(path) != file["sha256"]:
            bad[file["path"]] = "changed"
    return bad


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS for all files of a folder, as `sha256sum -c SHA256SUMS` checks them."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    (folder / SUMS).write_text("".join(f"{sha256_file(path)}  {path.name}\n" for path in paths), encoding="utf-8")


def check_sums(folder: Path, names: Sequence[str]) -> None:
    """Raise unless SHA256SUMS of this folder lists each of these files with the hash that the file has now."""
    sums = folder / SUMS
    if not sums.is_file():
        raise Damaged(sums, "is missing, so nothing vouches for the files beside it: export the model again")
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in read_text(sums).splitlines())}
    for name in names:
        if not (folder / name).is_file():
            raise Damaged(folder / name, "is missing: export the model again")
        if listed.get(name) != sha256_file(folder / name):
            raise Damaged(folder / name, f"is not what {SUMS} beside it says (changed): export the model again")


def name_all(bad: Mapping[str, str]) -> str:
    return ", ".join(f"{path} ({what})" for path, what in bad.items())
