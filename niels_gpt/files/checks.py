"""Checks of files: checksums, JSON descriptions with required keys, and the error for a damaged file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from niels_gpt.files.messages import read_text


class Damaged(ValueError):
    """What is wrong with a file or folder, with its `paths` for whoever knows how they were made.

    `path` begins the sentence; where there are `others`, `what` names them.
    """

    def __init__(self, path: str | Path, what: str, *, others: Iterable[str | Path] = ()) -> None:
        super().__init__(f"{path} {what}")
        self.paths = tuple(map(str, (path, *others)))
        self._made_of = (str(path), what, self.paths[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it can come from another process."""
        path, what, others = self._made_of
        return partial(Damaged, others=others), (path, what)


# Checksums: files that others point into are believed only when they are what was written.
#
# A number that has rotted is still a number. What a stage writes is therefore listed beside it with sizes and hashes,
# and whoever reads it compares first.

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


def read_meta(path: str | Path, *, required: Sequence[str] = ()) -> dict[str, Any]:
    """Read a JSON object and check that it has the `required` keys, as `check_keys` reads them."""
    try:
        meta = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # cut off, not UTF-8, or nested without end
        raise Damaged(path, f"is not valid JSON ({error}): build it again") from error
    if not isinstance(meta, dict):
        raise Damaged(path, "holds no JSON object: build it again")
    check_keys(meta, required, path=path)
    return meta


def check_keys(tree: Any, required: Sequence[str], *, path: str | Path) -> None:
    """Raise `Damaged` if a dotted key is missing. `*` stands for every key of an object, `[]` for every item."""
    missing = [name for name in required if not _has(tree, name.split("."))]
    if missing:
        raise Damaged(path, f"lacks {', '.join(missing)}: build it again")


_EVERY: dict[str, type] = {"*": dict, "[]": list}


def _has(tree: Any, parts: Sequence[str]) -> bool:
    if not parts:
        return True
    if kind := _EVERY.get(parts[0]):
        items = tree.values() if isinstance(tree, dict) else tree
        return isinstance(tree, kind) and all(_has(item, parts[1:]) for item in items)
    return isinstance(tree, dict) and parts[0] in tree and _has(tree[parts[0]], parts[1:])


@contextmanager
def described_by(path: str | Path) -> Iterator[None]:
    """What is done here follows a JSON file: where that lacks a key or has another kind of value, it is at fault."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        problem = f"{error} is not in it" if isinstance(error, KeyError) else str(error)
        raise Damaged(path, f"is not what was written ({problem})") from error
