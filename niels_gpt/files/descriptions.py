"""JSON files that describe others: read with a sentence for whatever is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from niels_gpt.files.damage import Damaged


def read_meta(path: str | Path, *, required: Sequence[str] = ()) -> dict[str, Any]:
    """The object in a JSON file, once it is known to have what is required of it (by name; a dot leads inside)."""
    try:
        meta = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # cut off, not UTF-8, or nested without end
        raise Damaged(path, f"is not valid JSON ({error}): build it again") from error
    if not isinstance(meta, dict):
        raise Damaged(path, "holds no JSON object: build it again")
    missing = [name for name in required if not _has(meta, name.split("."))]
    if missing:
        raise Damaged(path, f"lacks {', '.join(missing)}: build it again")
    return meta


def _has(tree: Any, parts: Sequence[str]) -> bool:
    return not parts or (isinstance(tree, dict) and parts[0] in tree and _has(tree[parts[0]], parts[1:]))


@contextmanager
def described_by(path: str | Path) -> Iterator[None]:
    """What is done here follows a JSON file: where that lacks a key or has another kind of value, it is at fault."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        problem = f"{error} is not in it" if isinstance(error, KeyError) else str(error)
        raise Damaged(path, f"is not what was written ({problem})") from error
