"""Overlap of held-out text with training text: the share of its 13-grams (runs of 13 words) found in both.

Hashes of the held-out 13-grams are kept in memory; training text is streamed part by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np

from niels_gpt.data.corpus.parts import Part, Texts, reading_part
from niels_gpt.data.corpus.sketch import Words, grams, words_of
from niels_gpt.data.corpus.split_files import Split, Splits, part_rows
from niels_gpt.duplicates.sketches import read_wording
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Engine, Worker

RUN = 13  # words; GPT-3's contamination analysis (Brown et al., 2020) uses 13-grams, too


@dataclass(frozen=True)
class PartToRead:
    """Part of a source, the split of its rows, and a file of hashes to look for (None in the first pass)."""

    source: str
    texts: Store
    part: Part
    split: Split
    wanted: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.source}/{self.part.name}"


@dataclass(frozen=True)
class Overlap:
    """Numbers of 13-grams and characters of held-out text, and how many of each are also in training text."""

    runs: int = 0
    runs_found: int = 0
    characters: int = 0
    characters_found: int = 0

    def __add__(self, other: Overlap) -> Overlap:
        return Overlap(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


def measure_overlap(
    engine: Engine, sources: Mapping[str, tuple[Texts, Splits]], *, scratch: Path
) -> dict[str, Overlap]:
    """Return, by source, the overlap of its held-out text with the training text of all sources.

    Three passes: collect the hashes of held-out runs, look for them in training text, and count what was found.
    """
    items = [
        PartToRead(name, texts.store, part, split)
        for name, (texts, splits) in sources.items()
        for part, split in splits.by_part(texts)
    ]
    held_out = np.unique(
        np.concatenate([_no_hashes(), *(found for _, found in engine.map(held_out_runs, items, tick=bool))])
    )
    wanted = scratch / "wanted.npy"
    np.save(wanted, held_out)
    found = np.zeros(len(held_out), dtype=bool)
    for _, places in engine.map(runs_in_training, _looking(items, wanted), tick=bool):
        found[places] = True
    np.save(wanted, held_out[found])
    total = dict.fromkeys(sources, Overlap())
    for item, overlap in engine.map(overlap_of_part, _looking(items, wanted), tick=bool):
        total[item.source] += overlap
    return total


def held_out_runs(item: PartToRead, worker: Worker) -> np.ndarray:
    """Return the distinct hashes of all runs in the part's held-out rows."""
    return np.unique(np.concatenate([_no_hashes(), *(runs for _, runs, _ in _runs(item, "val"))]))


def runs_in_training(item: PartToRead, worker: Worker) -> np.ndarray:
    """Return the indices of the wanted hashes that occur in the part's training rows."""
    wanted = _load(item)
    found = np.zeros(len(wanted), dtype=bool)
    for _, runs, _ in _runs(item, "train") if len(wanted) else ():
        places = np.minimum(np.searchsorted(wanted, runs), len(wanted) - 1)
        found[places[wanted[places] == runs]] = True
    return np.flatnonzero(found)


def overlap_of_part(item: PartToRead, worker: Worker) -> Overlap:
    """Count the runs of the part's held-out rows, those in training text, and the characters these cover."""
    wanted, total = _load(item), Overlap()
    for words, runs, starts in _runs(item, "val"):
        found = starts[np.isin(runs, wanted)]
        # Difference array: +1 where a run begins, -1 where it ends; its running sum is nonzero inside of runs.
        depth = np.zeros(int(words.ends[-1]) + 1 if len(words.ends) else 1, dtype=np.int32)
        np.add.at(depth, words.begins[found], 1)
        np.add.at(depth, words.ends[found + RUN - 1], -1)
        covered = int(np.count_nonzero(np.cumsum(depth)))
        total += Overlap(len(runs), len(found), words.characters, covered)
    return total


def _runs(item: PartToRead, side: str) -> Iterator[tuple[Words, np.ndarray, np.ndarray]]:
    """Yield (words, hashes of their runs, index of each run's first word) of a side's rows, in batches."""
    with reading_part(item.texts, item.part) as path:
        rows = part_rows(item.split, path)[side]
        for texts in read_wording(path, rows) if len(rows) else ():
            words = words_of(texts)
            runs, before = grams(words, RUN)
            starts = np.arange(len(runs)) + np.repeat(words.before[:-1] - before[:-1], np.diff(before))
            yield words, runs, starts


def _looking(items: Sequence[PartToRead], wanted: Path) -> list[PartToRead]:
    return [replace(item, wanted=wanted) for item in items]


def _load(item: PartToRead) -> np.ndarray:
    assert item.wanted is not None, "of a second reading"
    found: np.ndarray = np.load(item.wanted)
    return found


def _no_hashes() -> np.ndarray:
    return np.empty(0, dtype=np.uint64)
