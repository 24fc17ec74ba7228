"""What cache/ still holds of sources that params.yaml no longer names.

DVC leaves it there until its next checkout, and stages that depend on a whole folder would see it: they would run with
it, and once more without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import discard
from niels_gpt.files.sentences import read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.dvc_cache import DvcCache
from niels_gpt.pipeline.graph import outs_by_source


def remove_leftovers(root: Path, raw: Mapping[str, Any]) -> list[str]:
    """Take away what DVC's own cache has, too; the names of those sources."""
    cache, removed = DvcCache(), set()
    for path, name in _leftovers(root, raw):
        if cache.has(path):
            discard(path)
            removed.add(name)
    return sorted(removed)


def _leftovers(root: Path, raw: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """(Path, name of the source) of each."""
    for pattern, tables in outs_by_source(read_text(root / layout.DAG)).items():
        known = {name for table in tables for name in raw[table]}
        before, after = pattern.split("${key}")
        for path in sorted(root.glob(f"{before}*{after}")):
            name = path.relative_to(root).as_posix().removeprefix(before).removesuffix(after)
            if name not in known and re.fullmatch(r"[a-z0-9_]+", name):
                yield path, name
