"""Pairs of near duplicates among any number of sketches, by sorting on disk.

Entries (hash, document) are put into files by the hash's first bits, so that all of a hash are in one file and a file
fits into memory. Sorted, documents that share a hash are neighbours. Each is paired with the first of them and the few
before it, never all with all: a sentence that stands in a million documents makes some million pairs and no more, and
of a million copies each is still joined to the next. Pairs go into files in the same way; those that are met often
enough are compared by their sketches. Memory is that of a file, whatever the number of documents.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from niels_gpt.data.corpus.sketch import containment
from niels_gpt.duplicates.sketches import Sketches

_IN_MEMORY = 1 << 21  # entries of a file, about
_BEFORE = 3  # documents that one is paired with, beside the first
# A pair is met only in some of the hashes that it shares: the others are common, and other documents stand between.
_MET, _MET_SHARE = 2, 1 / 8
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # packed pairs have much the same first bits
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
    sizes: list[np.ndarray] = [np.zeros(1, dtype=np.int64)]
    scales: list[np.ndarray] = []
    with (scratch / "hashes").open("w+b") as kept:
        for first, batches in sources:
            number, own = first, np.uint64(first * int(_SPREAD) % 2**64)  # copies are of one source
            for batch in batches:
                documents = np.arange(number, number + len(batch.scale), dtype=np.uint32)
                number += len(documents)
                texts.put(batch.text ^ own, documents)
                if near is not None:
                    size = np.diff(batch.starts)
                    shingles.put(batch.hashes, np.repeat(documents, size))
                    words.put(batch.words[size > 0], documents[size > 0])
                    batch.hashes.tofile(kept)
                    sizes.append(size)
                    scales.append(batch.scale)
        kept.flush()
        copies = [runs.with_first() for runs in texts.runs()]
        pairs = [runs.with_earlier(1) for runs in words.runs()]
        shares = [np.ones(len(equal), dtype=np.float32) for equal in pairs]
        met = _Sorter(scratch / "pairs", (1 + _BEFORE) * shingles.files)
        for runs in shingles.runs():
            for packed in (*(runs.with_earlier(back) for back in range(1, 1 + _BEFORE)), runs.with_first(_BEFORE)):
                met.put(packed, np.zeros(len(packed), dtype=np.uint32))
        if near is not None:
            shelf = _Shelf(kept, np.cumsum(np.concatenate(sizes)), np.concatenate(scales))
            for packed in met.hashes():
                found, share = shelf.near(*_often(packed), near)
                pairs.append(_packed(*found.T))
                shares.append(share)
    # A pair of equal words is found twice; what is said first of it, that it is whole, holds.
    packed, index = np.unique(_joined(pairs, np.uint64), return_index=True)
    return Pairs(
        _unpacked(packed), _joined(shares, np.float32)[index], _unpacked(np.unique(_joined(copies, np.uint64)))
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
        file = ((hashes * _SPREAD) >> np.uint64(32)) * np.uint64(self.files) >> np.uint64(32)
        order = np.argsort(file, kind="stable")
        entries, ends = entries[order], np.searchsorted(file[order], np.arange(self.files + 1))
        for number in np.flatnonzero(np.diff(ends)):
            with (self.folder / str(number)).open("ab") as f:
                entries[ends[number] : ends[number + 1]].tofile(f)

    def hashes(self) -> Iterator[np.ndarray]:
        """Those of each file, which no hash makes long. It is deleted once it is read."""
        for path in sorted(self.folder.glob("*")):
            yield np.fromfile(path, dtype=_ENTRY)["hash"]
            path.unlink()

    def runs(self) -> Iterator[_Runs]:
        """All entries, equal hashes side by side. A file is deleted once it is read.

        One in which a hash is very frequent is too long for memory, and comes in pieces. Of each hash, the entries
        that a later one is paired with come with the next piece, too."""
        for number in range(self.files):
            path = self.folder / str(number)
            if not path.exists():
                continue
            known = np.empty(0, dtype=_ENTRY)
            with path.open("rb") as f:
                while len(entries := np.fromfile(f, dtype=_ENTRY, count=2 * _IN_MEMORY)):
                    runs = _Runs.of(known, entries)
                    yield runs
                    known = runs.needed()
            path.unlink()


@dataclass(frozen=True)
class _Runs:
    """Entries by hash and document, where the run of each entry's hash begins and ends, and whether it is new."""

    entries: np.ndarray
    first: np.ndarray
    last: np.ndarray
    new: np.ndarray

    @classmethod
    def of(cls, known: np.ndarray, entries: np.ndarray) -> _Runs:
        every = np.concatenate([known, entries])
        order = np.argsort(every["hash"], kind="stable")
        every = every[order]
        begins = np.flatnonzero(np.append(True, every["hash"][1:] != every["hash"][:-1]))
        lengths = np.diff(np.append(begins, len(every)))
        return cls(every, np.repeat(begins, lengths), np.repeat(begins + lengths - 1, lengths), order >= len(known))

    def with_earlier(self, back: int) -> np.ndarray:
        """Pairs of each new document and the one so many before it."""
        later = np.flatnonzero(self.new & (np.arange(len(self.first)) - self.first >= back))
        return _packed(self.entries["document"][later - back], self.entries["document"][later])

    def with_first(self, beyond: int = 0) -> np.ndarray:
        """Pairs of each new document and the first, where that is more than so many before it."""
        later = np.flatnonzero(self.new & (np.arange(len(self.first)) - self.first > beyond))
        return _packed(self.entries["document"][self.first[later]], self.entries["document"][later])

    def needed(self) -> np.ndarray:
        place = np.arange(len(self.first))
        return self.entries[(place == self.first) | (self.last - place < _BEFORE)]


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


def _often(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(pairs that were met often enough to be compared, how often)."""
    packed, met = np.unique(packed, return_counts=True)
    packed, met = packed[met >= _MET], met[met >= _MET]
    return _unpacked(packed), met


def _packed(earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Each pair as one number."""
    return earlier.astype(np.uint64) << np.uint64(32) | later.astype(np.uint64)


def _unpacked(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed >> np.uint64(32), packed & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64)


def _joined(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=dtype), *arrays])
