"""File checks: checksums, JSON metadata with required keys, and the error for a damaged file."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from niels_gpt.files.messages import read_text


class Damaged(ValueError):
    """Error for a damaged file or folder; callers use `paths` to say which stage has to be rerun.

    The message is "`path` `what`". If there are `others`, `what` should name them.
    """

    def __init__(self, path: str | Path, what: str, others: Iterable[str | Path] = ()) -> None:
        super().__init__(str(path), what, tuple(map(str, others)))  # all arguments, so that it can be pickled
        self.paths = (str(path), *self.args[2])

    def __str__(self) -> str:
        return f"{self.args[0]} {self.args[1]}"


# Checksums. A corrupted array of numbers still loads as numbers, so stages list their files with sizes and SHA-256
# hashes, and readers compare them before use.

SUMS = "SHA256SUMS"


def sha256_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's contents, in hexadecimal."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def describe_file(path: Path) -> dict[str, Any]:
    """Return the size and the hash of a file, as manifests list them."""
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def list_files(folder: Path, pattern: str, *, published: str) -> list[dict[str, Any]]:
    """Return path (below `published`, its final place), bytes and sha256 of each file matching `pattern`, sorted."""
    return [
        {"path": f"{published}/{path.relative_to(folder).as_posix()}", **describe_file(path)}
        for path in sorted(folder.glob(pattern))
    ]


def changed_files(files: Sequence[Mapping[str, Any]], *, root: Path) -> dict[str, str]:
    """Return {path: "missing" or "changed"} for files below `root` that differ from their listed size or hash."""
    bad = {}
    for file in files:
        if what := file_problem(root / file["path"], size=file["bytes"], sha256=file["sha256"]):
            bad[file["path"]] = what
    return bad


def file_problem(path: Path, *, size: int, sha256: str) -> str | None:
    """Return "missing" or "changed" if the file does not have this size and hash, else None."""
    if not path.is_file():
        return "missing"
    return "changed" if path.stat().st_size != size or sha256_file(path) != sha256 else None


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS for all files directly in a folder, in the format of `sha256sum -c`."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    (folder / SUMS).write_text("".join(f"{sha256_file(path)}  {path.name}\n" for path in paths), encoding="utf-8")


def check_sums(folder: Path, names: Sequence[str]) -> None:
    """Raise `Damaged` unless each named file has the hash that the folder's SHA256SUMS lists for it."""
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
    """Format {path: problem} for an error message: "path (problem), ..."."""
    return ", ".join(f"{path} ({what})" for path, what in bad.items())


def read_meta(path: str | Path, *, required: Sequence[str] = ()) -> dict[str, Any]:
    """Read a JSON object and check that it has the `required` keys; see `check_keys` for their syntax."""
    try:
        meta = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # truncated, not UTF-8, or nested too deeply
        raise Damaged(path, f"is not valid JSON ({error}): build it again") from error
    if not isinstance(meta, dict):
        raise Damaged(path, "holds no JSON object: build it again")
    check_keys(meta, required, path=path)
    return meta


def check_keys(tree: Any, required: Sequence[str], *, path: str | Path) -> None:
    """Raise `Damaged` if a dotted key is missing; `*` matches every key of an object, `[]` every item of a list."""
    missing = [name for name in required if not _has(tree, name.split("."))]
    if missing:
        raise Damaged(path, f"lacks {', '.join(missing)}: build it again")


def _has(tree: Any, parts: Sequence[str]) -> bool:
    if not parts:
        return True
    first, rest = parts[0], parts[1:]
    if first == "*":
        return isinstance(tree, dict) and all(_has(value, rest) for value in tree.values())
    if first == "[]":
        return isinstance(tree, list) and all(_has(item, rest) for item in tree)
    return isinstance(tree, dict) and first in tree and _has(tree[first], rest)


@contextmanager
def described_by(path: str | Path) -> Iterator[None]:
    """Turn lookup, type and attribute errors in the block into `Damaged`, blaming the JSON file at `path`."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        problem = f"{error} is not in it" if isinstance(error, KeyError) else str(error)
        raise Damaged(path, f"is not what was written ({problem})") from error
