"""Index of a source: its text, a suffix array over the words of its training documents, and its sections.

The suffix array is over bytes, not token ids: a new tokenizer needs no new index, and a text is found however it is
tokenized. Only suffixes that begin a word are kept, about one in six, since no span begins inside a word.

Files in the folder of an index: `text.bin` (all documents, a NUL byte after each), `suffixes-OFFSET.npy` (uint32, the
suffix array of the text from byte OFFSET on) and `sections.db` (SQLite: documents, sections, full-text search).
"""

from __future__ import annotations

import mmap
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from niels_gpt.files.checks import Damaged
from niels_gpt.trace.sections import SCHEMA, add_section, split_sections

# Word boundaries in UTF-8 bytes, the same in an index and in a text to trace. A word is a run of letters and digits. A
# character of a script without spaces (Chinese, Japanese, Korean) or an emoji begins a word of its own.

# Ranges of first bytes of what may follow a word: ASCII without letters and digits, the symbols of Latin-1 (C2),
# general punctuation and symbols (E2), and characters that begin a word of their own (E3 on: U+3000 and above).
ENDS = ((0x00, 0x30), (0x3A, 0x41), (0x5B, 0x61), (0x7B, 0x80), (0xC2, 0xC3), (0xE2, 0xF8))
_ALONE = 0xE3
_SYMBOLS = {0xC2: 1, 0xE2: 2}  # first byte: how many bytes follow it

_GAP = np.zeros(256, dtype=bool)
for _first, _last in ENDS:
    _GAP[_first:_last] = True
_GAP[_ALONE:] = False


def word_starts(text: np.ndarray) -> np.ndarray:
    """Return a mask of the bytes (uint8) that begin a word."""
    return _starts(text, _gaps(text))


def word_bounds(text: bytes) -> np.ndarray:
    """Return the first byte of each word and the byte after its last, as rows of an (n, 2) array."""
    data = np.frombuffer(text, dtype=np.uint8)
    gaps = _gaps(data)
    starts, ends = _starts(data, gaps), ~gaps
    ends[:-1] &= gaps[1:] | starts[1:]
    return np.stack([np.flatnonzero(starts), np.flatnonzero(ends) + 1], axis=1)


def _gaps(text: np.ndarray) -> np.ndarray:
    gaps = _GAP[text]
    for first, following in _SYMBOLS.items():
        symbols = np.flatnonzero(text == first)
        for byte in range(1, following + 1):
            gaps[symbols + byte] = True
    return gaps


def _starts(text: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    starts = ~gaps
    starts[1:] &= gaps[:-1] | (text[1:] >= _ALONE)
    return starts


TEXT, SECTIONS, SUFFIXES = "text.bin", "sections.db", "suffixes-{}.npy"
# Text of one suffix array. Sorting takes about 8 bytes of memory per byte: 2 GB, whatever the size of the source.
SHARD_BYTES = 256 << 20
_CHUNK = 1 << 18  # suffixes filtered at once: numpy turns the indices into int64


@dataclass(frozen=True)
class Row:
    """Document to index; one that was not `trained` on is found by search, but not traced."""

    name: str
    text: str
    trained: bool


@dataclass(frozen=True)
class Size:
    """Documents, bytes of text and words (of training documents) of an index."""

    documents: int
    text_bytes: int
    words: int


def write_index(
    folder: Path, rows: Iterable[Row], *, shard_bytes: int = SHARD_BYTES, tick: Callable[[int], object] = bool
) -> Size:
    """Write the index of these documents to an empty folder; call `tick` with the bytes of each."""
    db = sqlite3.connect(folder / SECTIONS)
    # Nothing is lost if it fails: the folder is published only when it is complete.
    db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA page_size = 4096;")
    db.executescript(f"CREATE TABLE documents (start INTEGER PRIMARY KEY, name TEXT); {SCHEMA}")
    documents = words = offset = 0
    shard, held_out = bytearray(), list[tuple[int, int]]()
    with (folder / TEXT).open("wb") as file:

        def finish() -> int:
            file.write(shard)
            suffixes = sort_suffixes(shard, without=held_out)
            np.save(folder / SUFFIXES.format(offset), suffixes)
            return len(suffixes)

        for row in rows:
            text = row.text.encode()
            if shard and len(shard) + len(text) > shard_bytes:
                words += finish()
                offset += len(shard)
                shard, held_out = bytearray(), []
            start = len(shard)
            db.execute("INSERT INTO documents VALUES (?, ?)", (offset + start, row.name))
            for section in split_sections(text):
                add_section(db, row.name, section, text, offset=offset + start)
            shard += text
            shard += b"\0"
            if not row.trained:
                held_out.append((start, len(shard)))
            documents += 1
            tick(len(text))
        words += finish()
    db.execute("INSERT INTO fts (fts) VALUES ('optimize')")
    db.commit()
    db.close()
    return Size(documents, offset + len(shard) - documents, words)


def sort_suffixes(text: bytearray, *, without: Iterable[tuple[int, int]] = ()) -> np.ndarray:
    """Return where the words of a text begin, sorted by the text from there on; leave out ranges of bytes."""
    if not text:
        return np.empty(0, dtype=np.uint32)
    from pydivsufsort import divsufsort

    data = np.frombuffer(text, dtype=np.uint8)
    wanted = word_starts(data)
    for start, stop in without:
        wanted[start:stop] = False
    every = divsufsort(data)
    kept = np.empty(int(wanted.sum()), dtype=np.uint32)
    filled = 0
    for first in range(0, len(every), _CHUNK):
        chunk = every[first : first + _CHUNK]
        chunk = chunk[wanted[chunk]]
        kept[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    return kept


@dataclass(frozen=True)
class Shard:
    """Suffix array of a part of an index's text."""

    text: mmap.mmap
    offset: int
    suffixes: memoryview

    def longest_match(self, wanted: bytes) -> int:
        """Return how many bytes of the beginning of `wanted` occur at the start of some word."""
        rank = self._rank(wanted, 0, len(self.suffixes))
        near = self.suffixes[max(0, rank - 1) : rank + 1]
        return max((self._common(wanted, position) for position in near), default=0)

    def occurrences(self, wanted: bytes) -> list[tuple[int, int]]:
        """Return the ranges of `suffixes` where `wanted` occurs as whole words."""
        lo = self._rank(wanted, 0, len(self.suffixes))
        hi = self._rank(wanted + b"\xff", lo, len(self.suffixes))  # no byte of UTF-8
        if lo == hi:
            return []
        bounds = (
            (self._rank(wanted + bytes([first]), lo, hi), self._rank(wanted + bytes([last]), lo, hi))
            for first, last in ENDS
        )
        return [(first, last) for first, last in bounds if first < last]

    def _rank(self, wanted: bytes, lo: int, hi: int) -> int:
        """Return the number of suffixes below `wanted`, which is known to be between `lo` and `hi`."""
        text, offset, size = self.text, self.offset, len(wanted)
        return bisect_left(
            self.suffixes, wanted, lo, hi, key=lambda start: text[offset + start : offset + start + size]
        )

    def _common(self, wanted: bytes, position: int) -> int:
        start = self.offset + position
        found = self.text[start : start + len(wanted)]
        if found == wanted:
            return len(wanted)
        size = min(len(found), len(wanted))
        differ = np.frombuffer(found, np.uint8, size) != np.frombuffer(wanted, np.uint8, size)
        return int(differ.argmax()) if differ.any() else size


class SourceIndex:
    """Index of the source `name` in a folder; its documents come from `input`, a folder, a file or None: unknown."""

    def __init__(self, name: str, folder: Path, input: Path | None) -> None:
        self.name, self.input, self.folder = name, input, folder
        try:
            with (folder / TEXT).open("rb") as file:
                self.text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            paths = {int(path.stem.partition("-")[2]): path for path in folder.glob(SUFFIXES.format("*"))}
            arrays = {offset: np.load(paths[offset], mmap_mode="r") for offset in sorted(paths)}
            # A memoryview yields Python integers, faster than numpy does.
            self.shards = [Shard(self.text, offset, memoryview(array)) for offset, array in arrays.items()]
            # Read-only, for any thread. A query opens the file now: the folder may be replaced while this is in use.
            uri = f"{(folder / SECTIONS).absolute().as_uri()}?mode=ro&immutable=1"
            self.db = sqlite3.connect(uri, uri=True, check_same_thread=False)
            self.db.execute("SELECT start FROM documents, sections USING (start) LIMIT 1").fetchone()
        except (OSError, ValueError, EOFError, sqlite3.Error) as error:
            raise Damaged(folder, f"is no complete index ({error}): make it again") from error
        self.words = sum(len(shard.suffixes) for shard in self.shards)
        self.count = lru_cache(maxsize=1 << 14)(self._count)

    def _count(self, wanted: bytes) -> int:
        """Return how often `wanted` occurs as whole words in training documents."""
        return sum(last - first for shard in self.shards for first, last in shard.occurrences(wanted))

    def positions(self, wanted: bytes) -> Iterator[int]:
        """Yield where `wanted` occurs as whole words in training documents, in order of the suffix arrays."""
        for shard in self.shards:
            for first, last in shard.occurrences(wanted):
                yield from (shard.offset + start for start in shard.suffixes[first:last])

    def document(self, position: int) -> tuple[str, int]:
        """Return name and first byte of the document that a byte of the text is in."""
        name, start = self.db.execute(
            "SELECT name, start FROM documents WHERE start <= ? ORDER BY start DESC LIMIT 1", (position,)
        ).fetchone()
        return name, start
