"""Checksums and consistency: files that others point into are believed only when they are what was written.

A number that has rotted is still a number. What a stage writes is therefore listed beside it with sizes and hashes
(`meta.list_files`), and whoever reads it compares first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.meta import read_meta, sha256_file
from niels_gpt.files.damage import Damaged
from niels_gpt.files.ranks import ALONE, Ranks


@contextmanager
def described_by(path: str | Path) -> Iterator[None]:
    """What is done here follows a JSON file: where that lacks a key or has another kind of value, it is at fault."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        problem = f"{error} is not in it" if isinstance(error, KeyError) else str(error)
        raise Damaged(path, f"is not what was written ({problem})") from error


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


def pooled(bad: Mapping[str, str], *, ranks: Ranks) -> dict[str, str]:
    """What all ranks have found, each in its share of the files: the same on all, so that they refuse alike."""
    return {path: what for found in ranks.exchange(dict(bad)) for path, what in found.items()}


def name_all(bad: Mapping[str, str]) -> str:
    return ", ".join(f"{path} ({what})" for path, what in bad.items())


def read_checked(path: Path, *, ranks: Ranks = ALONE) -> dict[str, Any]:
    """What a JSON file says of its folder, once the files that it lists under "files" are known to be as written.
    Of several ranks each checks its share of the files."""
    facts, folder = read_meta(path), path.parent
    with described_by(path):
        here = [{**file, "path": str(folder / Path(file["path"]).name)} for file in facts["files"]]
        bad = pooled(changed_files(ranks.files(here), root=Path()), ranks=ranks)
    if bad:
        raise Damaged(folder, f"is not what was written: {name_all(bad)}")
    return facts


def read_split(folder: Path, documents: Path) -> dict[str, np.ndarray]:
    """{"train": rows, "val": rows}, as the split stage wrote them, of a file that is still the one it split."""
    facts = read_checked(folder / "split.json")
    if sha256_file(documents) != facts.get("documents_sha256"):
        raise Damaged(documents, f"is not what {folder} was made of", others=[folder])
    return {split: np.load(folder / f"{split}.npy") for split in ("train", "val")}


def read_offsets(path: str | Path, *, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """(starts, lengths), once they are known to describe a file of so many tokens."""
    try:
        starts = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # on foreign bytes numpy's reader fails in many ways: EOFError, SyntaxError, ...
        raise Damaged(path, f"is no file of offsets ({error}): build it again") from error
    fits = isinstance(starts, np.ndarray) and starts.dtype == np.int64 and starts.ndim == 1 and len(starts) > 0
    # Compared, not subtracted: a difference of two wild numbers can wrap around to a plausible one.
    if not fits or starts[0] != 0 or (starts[1:] <= starts[:-1]).any() or starts[-1] >= tokens:
        raise Damaged(path, f"does not hold the ascending offsets of {tokens:,} tokens: build it again")
    return starts, np.diff(np.append(starts, tokens))
