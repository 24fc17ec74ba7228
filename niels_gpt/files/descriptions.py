"""JSON files that describe others: read with a sentence for whatever is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from niels_gpt.files.damage import Damaged


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
