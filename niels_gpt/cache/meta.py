"""Provenance of a cache: what it was made of and how. Never used to decide whether it is fresh."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import write_json
from niels_gpt.files.damage import Damaged


def write_meta(path: str | Path, meta: dict[str, Any]) -> None:
    """No times, no absolute paths in `meta`: equal inputs must give equal bytes."""
    write_json(path, meta)


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


def describe_origin(source: Mapping[str, Any], rule: Mapping[str, Any]) -> dict[str, Any]:
    """What a cache's meta.json says of where its text came from and how it was split."""
    return {
        "dataset_name": source.get("dataset") or source["name"],
        "dataset_config": source.get("config"),
        "dataset_revision": source.get("revision"),
        "streaming": source["streaming"],
        "split_rule": rule["by"],
        "seed": rule.get("seed"),
    }


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
