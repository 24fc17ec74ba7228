"""Sections of documents, and full-text search over them with SQLite's FTS5 (BM25)."""

from __future__ import annotations

import io
import re
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

# The text of a section is in the index's text file; `fts` keeps words and positions only.
SCHEMA = """
CREATE TABLE sections (id INTEGER PRIMARY KEY, start INTEGER, stop INTEGER, line INTEGER, headings TEXT);
CREATE VIRTUAL TABLE fts USING fts5(
    name, headings, text, content = '', tokenize = 'porter unicode61 remove_diacritics 2'
);
"""
_WEIGHTS = "bm25(3.0, 3.0, 1.0)"  # of a match in the document's name, in headings, in text
_LONG, _TOO_LONG = 2000, 4000  # bytes: a section is cut at the next empty line, at the next line
_MOST_TERMS = 32

_HEADING = re.compile(rb"[ \t]*(?:[-*+][ \t]+)?(#{1,6})[ \t]+(.+?)[ \t#]*\r?\n?")
_WIKI_HEADING = re.compile(rb" ((?:= )+)(.+?)(?: =)+[ \r\n]*")  # WikiText: " = Title = ", " = = Section = = "
_FENCE = re.compile(rb"[ \t]*(?:```|~~~)")

# Words that carry no topic, in questions above all. They are searched for if a query has no others.
_STOP_WORDS = """
a about after all also am an and any are as at be been before but by can could did do does for from get had has have he
her him his how i if in into is it its just me my no not of on one only or our out over s she should so some t than that
the their them then there these they this to up us use was we were what when where which who whom whose why will with
would you your
"""
_STOP = frozenset(_STOP_WORDS.split())


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
            yield Section(start, position, first + 1, _joined(path))
            start, first = position, number
        if heading:
            path = [*(above for above in path if above[0] < heading[0]), heading]
        position += len(line)
    if text[start:].strip():
        yield Section(start, position, first + 1, _joined(path))


def _heading(line: bytes) -> tuple[int, str] | None:
    """Return level and text of a heading."""
    if b"#" in line[:20] and (found := _HEADING.fullmatch(line)):
        return len(found[1]), found[2].decode()
    if line.startswith(b" = ") and (found := _WIKI_HEADING.fullmatch(line)):
        return found[1].count(b"="), found[2].decode()
    return None


def _joined(path: list[tuple[int, str]]) -> str:
    return " > ".join(heading for _, heading in path)


def add_section(db: sqlite3.Connection, name: str, section: Section, text: bytes, *, offset: int) -> None:
    """Add a section of the document `name`, whose text begins at byte `offset` of the index's text."""
    start, stop, line, headings = section
    row = db.execute(
        "INSERT INTO sections (start, stop, line, headings) VALUES (?, ?, ?, ?)",
        (offset + start, offset + stop, line, headings),
    ).lastrowid
    words = re.sub(r"[/\\._-]+", " ", name)
    values = (row, words, headings, text[start:stop].decode())
    db.execute("INSERT INTO fts (rowid, name, headings, text) VALUES (?, ?, ?, ?)", values)


class Match(NamedTuple):
    """Section found: its bytes in the index's text, first line, headings, and BM25 score (lower is better)."""

    start: int
    stop: int
    line: int
    headings: str
    score: float


def search(db: sqlite3.Connection, typed: str, *, limit: int) -> list[Match]:
    """Return the best sections for what a person typed: words, `prefix*`, "quoted phrases"."""
    expression = match_expression(typed)
    if not expression:
        return []
    found = db.execute(
        "SELECT s.start, s.stop, s.line, s.headings, f.rank FROM (SELECT rowid, rank FROM fts WHERE fts MATCH ? "
        f"AND rank MATCH '{_WEIGHTS}' ORDER BY rank LIMIT ?) AS f JOIN sections AS s ON s.id = f.rowid "
        "ORDER BY f.rank, s.id",
        (expression, limit),
    )
    return [Match(*row) for row in found]


def longest_sections(db: sqlite3.Connection, *, limit: int) -> list[tuple[str, int]]:
    """Return headings and first byte of the longest sections, those under a heading first."""
    order = "headings = '', start - stop, id"
    return db.execute(f"SELECT headings, start FROM sections ORDER BY {order} LIMIT ?", (limit,)).fetchall()


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
