"""Near-duplicate search over any number of sketches, by an external sort.

Entries (hash, document) are written to bucket files chosen by the hash, so that all entries of a hash share a bucket
and a bucket fits into memory. After sorting a bucket, documents that share a hash are adjacent. Each is paired with the
first of them and the 3 before it, never all with all: a sentence in a million documents makes a few million pairs and
no more, and a million copies still form one chain. Pairs go to bucket files in the same way; those that occur often
enough are compared by their sketches. Memory use is that of one bucket, whatever the number of documents.
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

_IN_MEMORY = 1 << 21  # approximate entries per bucket
_BEFORE = 3  # preceding documents that one is paired with, besides the first
# A pair is a candidate if it occurs for at least 2 hashes, and for 1/8 of those that near duplicates its size share:
# it does not occur for all of them, since other documents lie between the two where a hash is common.
_MET, _MET_SHARE = 2, 1 / 8
# Fibonacci hashing (2**64 over the golden ratio) spreads packed pairs over buckets: their high bits are much alike.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_ENTRY = np.dtype([("hash", np.uint64), ("document", np.uint32)])


@dataclass(frozen=True)
class Pairs:
    """Pairs of near duplicates, sorted; `copies` are pairs of equal text within one source."""

    documents: np.ndarray  # (n, 2), the earlier document first
    containment: np.ndarray  # (n,), estimated share of the smaller document's shingles in the other, 0 to 1
    copies: np.ndarray  # (n, 2), the first document with that text, and a later one


def find_pairs(
    sources: Iterable[tuple[int, Iterable[Sketches]]], *, near: float | None, hashes: int, scratch: Path
) -> Pairs:
    """Return the near duplicates and copies among documents numbered over all sources.

    `sources`: (number of its first document, its sketches) of each source, in order. `near`: the least containment;
    None looks for copies only. `hashes`: approximate number of hashes in all, which sets the number of buckets.
    """
    scratch.mkdir(parents=True)
    shingles, words, texts = (
        _Sorter(scratch / name, 1 + hashes // _IN_MEMORY) for name in ("shingles", "words", "texts")
    )
    sizes: list[np.ndarray] = [np.zeros(1, dtype=np.int64)]
    scales: list[np.ndarray] = []
    with (scratch / "hashes").open("w+b") as kept:
        for first, batches in sources:
            # Copies count within a source only: its own constant, XORed in, makes equal texts of two sources differ.
            number, own = first, np.uint64(first * int(_SPREAD) % 2**64)
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
    # A pair of equal words may be found twice: np.unique keeps the first entry, with a containment of 1.
    packed, index = np.unique(_joined(pairs, np.uint64), return_index=True)
    return Pairs(
        _unpacked(packed), _joined(shares, np.float32)[index], _unpacked(np.unique(_joined(copies, np.uint64)))
    )


@dataclass
class _Sorter:
    """Bucket files of entries, chosen by hash; there may be more of them than can be open at once."""

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
        """Yield the hashes of each bucket and delete its file; none may be frequent, since a bucket is read whole."""
        for path in sorted(self.folder.glob("*")):
            yield np.fromfile(path, dtype=_ENTRY)["hash"]
            path.unlink()

    def runs(self) -> Iterator[_Runs]:
        """Yield all entries, sorted by hash, and delete each bucket file after reading it.

        A very frequent hash can make a bucket too large for memory: it is then read in chunks. The entries of a chunk
        that later ones are to be paired with are repeated in the next chunk.
        """
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
    """Entries sorted by hash; for each, the first and last index of its hash's run, and whether it is new.

    Entries that are repeated from the chunk before are not new.
    """

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
        """Return packed pairs of each new document and the one `back` entries before it in its run."""
        later = np.flatnonzero(self.new & (np.arange(len(self.first)) - self.first >= back))
        return _packed(self.entries["document"][later - back], self.entries["document"][later])

    def with_first(self, beyond: int = 0) -> np.ndarray:
        """Return packed pairs of each new document and the first of its run, if more than `beyond` entries before."""
        later = np.flatnonzero(self.new & (np.arange(len(self.first)) - self.first > beyond))
        return _packed(self.entries["document"][self.first[later]], self.entries["document"][later])

    def needed(self) -> np.ndarray:
        """Return the entries that the next chunk's are to be paired with: the first and the last few of each run."""
        place = np.arange(len(self.first))
        return self.entries[(place == self.first) | (self.last - place < _BEFORE)]


@dataclass(frozen=True)
class _Shelf:
    """All sketches in one file, with an index by document that takes 9 bytes of memory for each."""

    hashes: BinaryIO
    starts: np.ndarray
    scales: np.ndarray

    def near(self, pairs: np.ndarray, met: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs with a containment of at least `least`, and their containment.

        `pairs`: candidates (n, 2). `met`: number of hashes each occurred for; too few rule a pair out unread.
        """
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
    """Return (distinct pairs (n, 2) that occur at least `_MET` times, number of occurrences)."""
    packed, met = np.unique(packed, return_counts=True)
    packed, met = packed[met >= _MET], met[met >= _MET]
    return _unpacked(packed), met


def _packed(earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Pack each pair into one uint64, the earlier document in the high half."""
    return earlier.astype(np.uint64) << np.uint64(32) | later.astype(np.uint64)


def _unpacked(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed >> np.uint64(32), packed & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64)


def _joined(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=dtype), *arrays])
