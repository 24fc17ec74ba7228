"""Pairs of near duplicates, with their texts: what `niels-gpt inspect duplicates` shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from niels_gpt.data.documents import read_column
from niels_gpt.data.parts import open_texts, reading_part
from niels_gpt.data.sketches import read_wording
from niels_gpt.files.descriptions import read_meta
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.places import store_of
from niels_gpt.report.duplicates import side_by_side


class Found(NamedTuple):
    source: str
    id: str
    text: str


def shown_pairs(params: Params, source: str | None, *, n: int, width: int) -> Iterator[str]:
    """A line each of what there is, and of the first n pairs their names and texts. Pairs across sources come first."""
    if not (layout.PAIRS / "sources.json").is_file():
        raise ValueError(f"there are no {layout.PAIRS} yet: run `dvc repro duplicates` first")
    ranges = read_meta(layout.PAIRS / "sources.json")
    if source is not None and source not in ranges:
        raise ValueError(f"there are no duplicates of a source {source!r}; there are those of: {', '.join(ranges)}")
    names = sorted(ranges, key=lambda name: ranges[name][0])
    pairs, shares = (np.load(layout.PAIRS / f"{name}.npy") for name in ("documents", "containment"))
    firsts = np.array([ranges[name][0] for name in names])
    of = np.searchsorted(firsts, pairs, side="right") - 1
    kept = np.arange(len(pairs)) if source is None else np.flatnonzero((of == names.index(source)).any(axis=1))
    across = of[kept, 0] != of[kept, 1]
    where = "" if source is None else f" of {source}"
    yield f"{len(kept):,} pairs{where}, {int(across.sum()):,} of them across sources"
    for pair in kept[np.argsort(~across, kind="stable")][:n]:
        left, right = (
            _read(params, names[number], int(document - firsts[number]))
            for number, document in zip(of[pair], pairs[pair], strict=True)
        )
        yield f"--- {left.source} {left.id} | {right.source} {right.id}: {shares[pair]:.0%} of the smaller"
        yield from side_by_side(left.text, right.text, width=width)


def _read(params: Params, name: str, row: int) -> Found:
    texts = open_texts(layout.RAW / name, stored=store_of(params, name))
    for part in texts.parts:
        if row < part.rows:
            with reading_part(texts.store, part) as path:
                return Found(name, read_column(path, "id")[row], _text(path, row))
        row -= part.rows
    raise ValueError(f"{layout.PAIRS} is not of these texts: run `dvc repro duplicates`")


def _text(path: Path, row: int) -> str:
    ((text,),) = read_wording(path, np.array([row]))
    return text
