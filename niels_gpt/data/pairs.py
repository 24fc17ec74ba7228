"""Pairs of near duplicates among any number of sketches, by sorting on disk.

Entries (hash, document) are put into files by the hash's first bits, so that all of a hash are in one file and a file
fits into memory. Sorted, documents that share a hash are neighbours. Each is paired with the first of them and the few
before it, never all with all: a sentence that stands in a million documents makes some million pairs and no more, and
of a million copies each is still joined to the next. Pairs go into files in the same way; those that are met often
enough are compared by their sketches. Memory is that of a file, whatever the number of documents.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from niels_gpt.data.sketch import containment
from niels_gpt.data.sketches import Sketches

_IN_MEMORY = 1 << 21  # entries of a file, about
_BEFORE = 3  # documents that one is paired with, beside the first
# A pair is met only in some of the hashes that it shares: the others are common, and other documents stand between.
_MET, _MET_SHARE = 2, 1 / 8
_ENTRY = np.dtype([("hash", np.uint64), ("document", np.uint32)])


@dataclass(frozen=True)
class Pairs:
    """Near duplicates, each with an earlier document; in order. `copies` are of equal text and of one source."""

    documents: np.ndarray  # (n, 2), the earlier first
    containment: np.ndarray
    copies: np.ndarray  # (n, 2), the first of all of its text first


def find_pairs(
    sources: Iterable[tuple[int, Iterable[Sketches]]], *, near: float | None, hashes: int, scratch: Path
) -> Pairs:
    """Of documents numbered over all sources: (number of its first document, its sketches) of each, in order. There
    are `hashes` in all, about. `near` is the least containment; None looks for copies alone."""
    scratch.mkdir(parents=True)
    shingles, words, texts = (
        _Sorter(scratch / name, 1 + hashes // _IN_MEMORY) for name in ("shingles", "words", "texts")
    )
    firsts: list[int] = []
    sizes: list[np.ndarray] = [np.zeros(1, dtype=np.int64)]
    scales: list[np.ndarray] = []
    with (scratch / "hashes").open("w+b") as kept:
        for first, batches in sources:
            firsts.append(number := first)
            for batch in batches:
                documents = np.arange(number, number + len(batch.scale), dtype=np.uint32)
                number += len(documents)
                texts.put(batch.text, documents)
                if near is not None:
                    size = np.diff(batch.starts)
                    shingles.put(batch.hashes, np.repeat(documents, size))
                    words.put(batch.words[size > 0], documents[size > 0])
                    batch.hashes.tofile(kept)
                    sizes.append(size)
                    scales.append(batch.scale)
        kept.flush()
        copies = [_none(), *_copies(texts, np.array(firsts))]
        pairs, shares = [_none()], [np.empty(0, dtype=np.float32)]
        for equal in _equal(words):
            pairs.append(equal)
            shares.append(np.ones(len(equal), dtype=np.float32))
        met = _Sorter(scratch / "pairs", shingles.files)
        for entries in shingles.sorted():
            packed = _neighbours(entries)
            met.put(packed, np.zeros(len(packed), dtype=np.uint32))
        if near is not None:
            shelf = _Shelf(kept, np.cumsum(np.concatenate(sizes)), np.concatenate(scales))
            for entries in met.sorted():
                found, share = shelf.near(*_often(entries["hash"]), near)
                pairs.append(found)
                shares.append(share)
    # A pair of equal words is found twice; what is said first of it, that it is whole, holds.
    packed, index = np.unique(_packed(*np.concatenate(pairs).T), return_index=True)
    return Pairs(
        _unpacked(packed), np.concatenate(shares)[index], _unpacked(np.unique(_packed(*np.concatenate(copies).T)))
    )


@dataclass
class _Sorter:
    """Entries by hash, in more files than can be open at once."""

    folder: Path
    files: int

    def put(self, hashes: np.ndarray, documents: np.ndarray) -> None:
        self.folder.mkdir(exist_ok=True)
        entries = np.empty(len(hashes), dtype=_ENTRY)
        entries["hash"], entries["document"] = hashes, documents
        file = (_spread(hashes) >> np.uint64(32)) * np.uint64(self.files) >> np.uint64(32)
        order = np.argsort(file, kind="stable")
        entries, ends = entries[order], np.searchsorted(file[order], np.arange(self.files + 1))
        for number in np.flatnonzero(np.diff(ends)):
            with (self.folder / str(number)).open("ab") as f:
                entries[ends[number] : ends[number + 1]].tofile(f)

    def sorted(self) -> Iterator[np.ndarray]:
        """Each file's entries by hash, and by document. A file is deleted once it is read."""
        for number in range(self.files):
            path = self.folder / str(number)
            if path.exists():
                entries = np.fromfile(path, dtype=_ENTRY)
                path.unlink()
                yield entries[np.argsort(entries["hash"], kind="stable")]


def _spread(hashes: np.ndarray) -> np.ndarray:
    """Packed pairs have much the same first bits."""
    return hashes * np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class _Shelf:
    """All sketches in one file, to be looked up by document: 9 bytes of memory for each."""

    hashes: BinaryIO
    starts: np.ndarray
    scales: np.ndarray

    def near(self, pairs: np.ndarray, met: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
        """Those pairs, of which each was met so often, that are near duplicates, and how near."""
        scales = self.scales[pairs].astype(np.int64)
        sizes = (self.starts[pairs + 1] - self.starts[pairs]) >> (scales.max(axis=1, keepdims=True) - scales)
        likely = pairs[met >= _MET_SHARE * least * sizes.min(axis=1)]
        shares = np.array([self._containment(a, b) for a, b in likely.tolist()], dtype=np.float32)
        return likely[shares >= least], shares[shares >= least]

    def _containment(self, a: int, b: int) -> float:
        return containment(self._of(a), int(self.scales[a]), self._of(b), int(self.scales[b]))

    def _of(self, document: int) -> np.ndarray:
        start, end = self.starts[document : document + 2].tolist()
        return np.frombuffer(os.pread(self.hashes.fileno(), 8 * (end - start), 8 * start), dtype=np.uint64)


def _neighbours(entries: np.ndarray) -> np.ndarray:
    """Pairs, packed into a number each, of documents that have a hash in common."""
    hashes, documents = entries["hash"], entries["document"]
    new = np.append(True, hashes[1:] != hashes[:-1])
    place = np.arange(len(hashes))
    first = np.maximum.accumulate(np.where(new, place, 0))
    pairs = []
    for back in range(1, _BEFORE + 1):
        later = np.flatnonzero(place - first >= back)
        pairs.append(_packed(documents[later - back], documents[later]))
    later = np.flatnonzero(place - first > _BEFORE)
    pairs.append(_packed(documents[first[later]], documents[later]))
    return np.concatenate(pairs)


def _often(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(pairs that were met often enough to be compared, how often)."""
    packed, met = np.unique(packed, return_counts=True)
    packed, met = packed[met >= _MET], met[met >= _MET]
    return _unpacked(packed), met


def _equal(sorter: _Sorter) -> Iterator[np.ndarray]:
    """Pairs of documents of one hash, each with the one before it."""
    for entries in sorter.sorted():
        later = np.flatnonzero(entries["hash"][1:] == entries["hash"][:-1]) + 1
        yield np.stack([entries["document"][later - 1], entries["document"][later]], axis=1).astype(np.int64)


def _copies(sorter: _Sorter, firsts: np.ndarray) -> Iterator[np.ndarray]:
    """Pairs of documents of one hash and one source, each with the first of them."""
    for entries in sorter.sorted():
        source = np.searchsorted(firsts, entries["document"], side="right")
        new = np.append(True, (entries["hash"][1:] != entries["hash"][:-1]) | (source[1:] != source[:-1]))
        first = np.maximum.accumulate(np.where(new, np.arange(len(entries)), 0))
        yield np.stack([entries["document"][first[~new]], entries["document"][~new]], axis=1).astype(np.int64)


def _packed(earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Each pair as one number."""
    return earlier.astype(np.uint64) << np.uint64(32) | later.astype(np.uint64)


def _unpacked(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed >> np.uint64(32), packed & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64)


def _none() -> np.ndarray:
    return np.empty((0, 2), dtype=np.int64)
