"""Near-duplicate search over any number of sketches, by an external sort.

Entries (hash, document) are written to bucket files chosen by the hash, so that all entries of a hash share a bucket
and a bucket fits into memory. After sorting a bucket, documents that share a hash are adjacent. Each is paired with the
first of them and the 3 before it, never all with all: a sentence in a million documents makes a few million pairs and
no more, and a million copies still form one chain. Pairs go to bucket files in the same way; those that occur often
enough are compared by their sketches. Memory use is that of one bucket: 12 bytes for each of some 2 million entries,
or for each document with the most frequent hash, if those are more.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow.parquet as pq

from niels_gpt.data.corpus.parts import Texts
from niels_gpt.data.corpus.sketch import Sketches, containment

_IN_MEMORY = 1 << 21  # approximate entries per bucket
_BEFORE = 3  # preceding documents that one is paired with, besides the first
# A pair is a candidate if it occurs for at least 2 hashes, and for 1/8 of those that near duplicates its size share:
# it does not occur for all of them, since other documents lie between the two where a hash is common.
_MET, _MET_SHARE = 2, 1 / 8
# Fibonacci hashing (2**64 over the golden ratio) spreads packed pairs over buckets: their high bits are much alike.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_ENTRY = np.dtype([("hash", np.uint64), ("document", np.uint32)])


def read_sketches(texts: Texts) -> Iterator[Sketches]:
    """Yield the sketches of a source, which the load stage wrote beside the text, one row group at a time."""
    for path in texts.paths():
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=["text_hash", "words_hash", "scale", "hashes"])
                lists = table["hashes"].combine_chunks()
                starts = lists.offsets.to_numpy().astype(np.int64) - lists.offsets[0].as_py()
                text, words, scale = (table[name].to_numpy() for name in ("text_hash", "words_hash", "scale"))
                yield Sketches(text, words, scale, starts, lists.flatten().to_numpy())


@dataclass(frozen=True)
class Pairs:
    """Pairs of near duplicates, sorted; `copies` are pairs of equal text within one source."""

    documents: np.ndarray  # (n, 2), the earlier document first
    containment: np.ndarray  # (n,), estimated share of the smaller document's shingles in the other, 0 to 1
    copies: np.ndarray  # (n, 2), the first document with that text, and a later one


def find_pairs(sources: Iterable[Iterable[Sketches]], *, near: float | None, hashes: int, scratch: Path) -> Pairs:
    """Return the near duplicates and copies among documents numbered over all sources, in the order of their sketches.

    `near`: the least containment; None looks for copies only. `hashes`: approximate number of hashes in all, which sets
    the number of buckets.
    """
    scratch.mkdir(parents=True)
    shingles, words, texts = (
        _Sorter(scratch / name, 1 + hashes // _IN_MEMORY) for name in ("shingles", "words", "texts")
    )
    sizes: list[np.ndarray] = [np.zeros(1, dtype=np.int64)]
    scales: list[np.ndarray] = []
    with (scratch / "hashes").open("w+b") as kept:
        number = 0
        for batches in sources:
            # Copies count within a source only: its own constant, XORed in, makes equal texts of two sources differ.
            own = np.uint64(number * int(_SPREAD) % 2**64)
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
        copies = [found for entries in texts.buckets() for found in _linked(entries, 0, first=True)]
        pairs = [found for entries in words.buckets() for found in _linked(entries, 1, first=False)]
        shares = [np.ones(len(equal), dtype=np.float32) for equal in pairs]
        met = _Sorter(scratch / "pairs", (1 + _BEFORE) * shingles.files)
        for packed in (found for entries in shingles.buckets() for found in _linked(entries, _BEFORE, first=True)):
            met.put(packed, np.zeros(len(packed), dtype=np.uint32))
        if near is not None:
            shelf = _Shelf(kept, np.cumsum(np.concatenate(sizes)), np.concatenate(scales))
            for entries in met.buckets():
                packed, count = np.unique(entries["hash"], return_counts=True)
                often = count >= _MET
                found, share = shelf.near(_unpacked(packed[often]), count[often], near)
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

    def buckets(self) -> Iterator[np.ndarray]:
        """Yield the entries of each bucket and delete its file."""
        for path in sorted(self.folder.glob("*")):
            yield np.fromfile(path, dtype=_ENTRY)
            path.unlink()


def _linked(entries: np.ndarray, before: int, *, first: bool) -> Iterator[np.ndarray]:
    """Yield packed pairs of documents with the same hash: each with those up to `before` entries before it.

    With `first`, it is also paired with the first of them, if that is further away.
    """
    entries = entries[np.argsort(entries["hash"], kind="stable")]
    documents, places = entries["document"], np.arange(len(entries))
    begins = np.append(True, entries["hash"][1:] != entries["hash"][:-1])
    firsts = np.maximum.accumulate(np.where(begins, places, 0))  # place of the first with each one's hash
    behind = places - firsts
    for back in range(1, before + 1):
        later = np.flatnonzero(behind >= back)
        yield _packed(documents[later - back], documents[later])
    if first:
        later = np.flatnonzero(behind > before)
        yield _packed(documents[firsts[later]], documents[later])


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
        shares = np.array([containment(*self._of(a), *self._of(b)) for a, b in likely.tolist()], dtype=np.float32)
        return likely[shares >= least], shares[shares >= least]

    def _of(self, document: int) -> tuple[np.ndarray, int]:
        start, end = self.starts[document : document + 2].tolist()
        data = os.pread(self.hashes.fileno(), 8 * (end - start), 8 * start)
        return np.frombuffer(data, dtype=np.uint64), int(self.scales[document])


def _packed(earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Pack each pair into one uint64, the earlier document in the high half."""
    return earlier.astype(np.uint64) << np.uint64(32) | later.astype(np.uint64)


def _unpacked(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed >> np.uint64(32), packed & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64)


def _joined(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=dtype), *arrays])
