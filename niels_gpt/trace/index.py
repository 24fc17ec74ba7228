"""Index of a source: its text, a suffix array over the words of its training documents, and its sections.

The suffix array is over bytes, not token ids: a new tokenizer needs no new index, and a text is found however it is
tokenized. Only suffixes that begin a word are kept, about one in six, since no span begins inside a word.

Files in the folder of an index: `text.bin` (all documents, a NUL byte after each), `suffixes-OFFSET.npy` (uint32, the
suffix array of the text from byte OFFSET on) and `sections.db` (SQLite: documents, sections, full-text search).
"""

import io
import mmap
import os
import re
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from niels_gpt.files.checks import Damaged

# Word boundaries in UTF-8 bytes, the same in an index and in a text to trace. A word is a run of letters and digits. A
# character of a script without spaces (Chinese, Japanese, Korean) or an emoji begins a word of its own.

# Ranges of first bytes of what may follow a word: ASCII without letters and digits, the symbols of Latin-1 (C2),
# general punctuation and symbols (E2), and characters that begin a word of their own (E3 on: U+3000 and above).
ENDS = ((0x00, 0x30), (0x3A, 0x41), (0x5B, 0x61), (0x7B, 0x80), (0xC2, 0xC3), (0xE2, 0xF8))
_ALONE = 0xE3

_GAP = np.zeros(256, dtype=bool)
for _first, _last in ENDS:
    _GAP[_first:_last] = True
_GAP[_ALONE:] = False


def word_bounds(text: bytes) -> np.ndarray:
    """Return the first byte of each word and the byte after its last, as rows of an (n, 2) array."""
    gaps, starts = _gaps_and_starts(text)
    ends = ~gaps
    ends[:-1] &= gaps[1:] | starts[1:]
    return np.stack([np.flatnonzero(starts), np.flatnonzero(ends) + 1], axis=1)


def _gaps_and_starts(text: bytes | bytearray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mask of the bytes between words, and that of the first bytes of words."""
    data = np.frombuffer(text, dtype=np.uint8)
    gaps = _GAP[data]
    for first, following in ((0xC2, 1), (0xE2, 2)):  # first byte of a symbol, and how many bytes follow it
        symbols = np.flatnonzero(data == first)
        for byte in range(1, following + 1):
            gaps[symbols + byte] = True
    starts = ~gaps
    starts[1:] &= gaps[:-1] | (data[1:] >= _ALONE)
    return gaps, starts


# The text of a section is in the index's text file; `fts` keeps words and positions only.
_SCHEMA = """
CREATE TABLE documents (start INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE sections (id INTEGER PRIMARY KEY, start INTEGER, stop INTEGER, line INTEGER, headings TEXT);
CREATE VIRTUAL TABLE fts USING fts5(
    name, headings, text, content = '', tokenize = 'porter unicode61 remove_diacritics 2'
);
"""
_LONG, _TOO_LONG = 2000, 4000  # bytes: a section is cut at the next empty line, at the next line

_HEADING = re.compile(rb"[ \t]*(?:[-*+][ \t]+)?(#{1,6})[ \t]+(.+?)[ \t#]*\r?\n?")
_WIKI_HEADING = re.compile(rb" ((?:= )+)(.+?)(?: =)+[ \r\n]*")  # WikiText: " = Title = ", " = = Section = = "
_FENCE = re.compile(rb"[ \t]*(?:```|~~~)")


class Section(NamedTuple):
    """Bytes `start` to `stop` of a document, its first line (from 1), and the headings it is under."""

    start: int
    stop: int
    line: int
    headings: str


def split_sections(text: bytes) -> Iterator[Section]:
    """Yield the sections of a document: cut at headings (Markdown, WikiText), and where one is long."""
    path: list[tuple[int, str]] = []
    start = first = position = 0
    fenced = False
    for number, line in enumerate(io.BytesIO(text)):
        heading = None
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            heading = _heading(line)
        size = position - start
        if size and (heading or size > _TOO_LONG or (size > _LONG and not line.strip())):
            yield Section(start, position, first + 1, " > ".join(title for _, title in path))
            start, first = position, number
        if heading:
            path = [*(above for above in path if above[0] < heading[0]), heading]
        position += len(line)
    if text[start:].strip():
        yield Section(start, position, first + 1, " > ".join(title for _, title in path))


def _heading(line: bytes) -> tuple[int, str] | None:
    """Return level and text of a heading."""
    if b"#" in line[:20] and (found := _HEADING.fullmatch(line)):
        return len(found[1]), found[2].decode()
    if line.startswith(b" = ") and (found := _WIKI_HEADING.fullmatch(line)):
        return found[1].count(b"="), found[2].decode()
    return None


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


def write_index(
    folder: Path, rows: Iterable[Row], *, shard_bytes: int = SHARD_BYTES, tick: Callable[[int], object] = bool
) -> int:
    """Write the index of these documents to an empty folder; return the number of words that can be traced.

    `tick` is called with the bytes of each document.
    """
    db = sqlite3.connect(folder / SECTIONS)
    # Nothing is lost if it fails: the folder is published only when it is complete.
    db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA page_size = 4096;")
    db.executescript(_SCHEMA)
    insert_section = "INSERT INTO sections (start, stop, line, headings) VALUES (?, ?, ?, ?)"
    insert_words = "INSERT INTO fts (rowid, name, headings, text) VALUES (?, ?, ?, ?)"
    words = offset = 0
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
            begin, name = offset + len(shard), re.sub(r"[/\\._-]+", " ", row.name)
            db.execute("INSERT INTO documents VALUES (?, ?)", (begin, row.name))
            for start, stop, line, headings in split_sections(text):
                number = db.execute(insert_section, (begin + start, begin + stop, line, headings)).lastrowid
                db.execute(insert_words, (number, name, headings, text[start:stop].decode()))
            shard += text
            shard += b"\0"
            if not row.trained:
                held_out.append((begin - offset, len(shard)))
            tick(len(text))
        words += finish()
    db.execute("INSERT INTO fts (fts) VALUES ('optimize')")
    db.commit()
    db.close()
    return words


def sort_suffixes(text: bytearray, *, without: Iterable[tuple[int, int]] = ()) -> np.ndarray:
    """Return where the words of a text begin, sorted by the text from there on; leave out ranges of bytes."""
    if not text:
        return np.empty(0, dtype=np.uint32)
    from pydivsufsort import divsufsort

    wanted = _gaps_and_starts(text)[1]
    for start, stop in without:
        wanted[start:stop] = False
    every = divsufsort(np.frombuffer(text, dtype=np.uint8))
    chunks = (every[first : first + _CHUNK] for first in range(0, len(every), _CHUNK))
    return np.concatenate([chunk[wanted[chunk]].astype(np.uint32) for chunk in chunks])


@dataclass(frozen=True)
class Shard:
    """Suffix array of a part of an index's text."""

    text: mmap.mmap
    offset: int
    suffixes: memoryview

    def longest_match(self, wanted: bytes) -> int:
        """Return how many bytes of the beginning of `wanted` occur at the start of some word."""
        rank = self._rank(wanted, 0, len(self.suffixes))
        begins = [self.offset + start for start in self.suffixes[max(0, rank - 1) : rank + 1]]
        near = [self.text[begin : begin + len(wanted)] for begin in begins]
        return max((len(os.path.commonprefix((wanted, text))) for text in near), default=0)  # noqa: RUF071  # no paths

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
        text, begin, end = self.text, self.offset, self.offset + len(wanted)
        return bisect_left(self.suffixes, wanted, lo, hi, key=lambda start: text[begin + start : end + start])


class SourceIndex:
    """Index of the source `name` in a folder; its documents come from `input`, a folder, a file or None: unknown."""

    def __init__(self, name: str, folder: Path, input: Path | None) -> None:
        self.name, self.input = name, input
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
        found = "SELECT name, start FROM documents WHERE start <= ? ORDER BY start DESC LIMIT 1"
        name, start = self.db.execute(found, (position,)).fetchone()
        return name, start


# Full-text search with SQLite's FTS5 (BM25).

_WEIGHTS = "bm25(3.0, 3.0, 1.0)"  # of a match in the document's name, in headings, in text
_MOST_TERMS = 32

# Words that carry no topic, in questions above all. They are searched for if a query has no others.
_STOP_WORDS = """
a about after all also am an and any are as at be been before but by can could did do does for from get had has have he
her him his how i if in into is it its just me my no not of on one only or our out over s she should so some t than that
the their them then there these they this to up us use was we were what when where which who whom whose why will with
would you your
"""
_STOP = frozenset(_STOP_WORDS.split())


def search(db: sqlite3.Connection, typed: str, *, limit: int) -> list[tuple[float, Section]]:
    """Return (BM25 score, section), lowest and best first, for words, `prefix*` and "quoted phrases" typed."""
    expression = match_expression(typed)
    if not expression:
        return []
    found = db.execute(
        "SELECT f.rank, s.start, s.stop, s.line, s.headings FROM (SELECT rowid, rank FROM fts WHERE fts MATCH ? "
        f"AND rank MATCH '{_WEIGHTS}' ORDER BY rank LIMIT ?) AS f JOIN sections AS s ON s.id = f.rowid "
        "ORDER BY f.rank, s.id",
        (expression, limit),
    )
    return [(score, Section(*values)) for score, *values in found]  # bytes of the index's text, not of a document


def match_expression(typed: str) -> str:
    """Return an FTS5 expression: every quoted phrase must occur, any of the other words may; "" if there is no word.

    Operators of FTS5 are words here, so nothing that is typed is a syntax error.
    """
    phrases = [" ".join(_words(quoted)) for quoted in re.findall('"([^"]*)"', typed)]
    required = [f'"{phrase}"' for phrase in phrases if phrase][:_MOST_TERMS]
    words = _words(re.sub('"[^"]*"', " ", typed))
    topical = _topical(words) or ([] if required else words)
    terms = [f'"{word.removesuffix("*")}"{"*" * word.endswith("*")}' for word in dict.fromkeys(topical)][:_MOST_TERMS]
    if not required:
        return " OR ".join(terms)
    # A phrase that is required is also one of the alternatives, so that the words only rank.
    return " AND ".join([*required, f"({' OR '.join([required[0], *terms])})"])


def best_line(text: str, typed: str) -> int:
    """Return the index of the line of a section with most of the words typed; rare words count more."""
    # Without its ending, a word is found in its other forms, as FTS5 finds it by its stem.
    stems = {word[: max(3, len(word) - 3)].lower() for word in _topical(_words(typed))}
    lines = text.lower().split("\n")
    lines_with = {stem: sum(stem in line for line in lines) for stem in stems}
    weights = [sum(1 / lines_with[stem] for stem in stems if stem in line) for line in lines]
    return weights.index(max(weights))


def _topical(words: list[str]) -> list[str]:
    return [word for word in words if word.lower() not in _STOP]


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+\*?", text)
