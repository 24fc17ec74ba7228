"""Trace a text to the training documents it repeats, and search documents, over the indexes of several sources."""

import math
import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import PurePath
from typing import Any

from niels_gpt.trace.index import Section, SourceIndex, best_line, search, word_bounds

# A span is shown if it is unlikely to be in the text by chance: the probability of its words, sampled independently, is
# below 2**-_MARGIN_BITS divided by the number of words in the text. Words of a language are not independent, hence the
# margin, which "in the middle of the" does not reach.
_MARGIN_BITS = 20
_COMMON_BITS = 10  # a word more frequent than 1 in 1,024 is common; spans of such words alone are not shown
_PLACES = 5
_MOST_SEARCHED = 10_000  # occurrences looked at for places in different documents
_CONTEXT = 300  # characters of a line of context
_READ_BYTES = 16 << 20  # largest file that is read to find a document in it
_MOST_TOPICS = 200  # sections looked at for titles
_TITLE = re.compile(r"[^\W\d_][^\W_][\w' ,-]{2,38}\??")
_READ_BEGINNING = 1000  # bytes of the document that are looked up


@dataclass(frozen=True)
class Place:
    """Line of a document. `path` is the file on this machine, if it is there."""

    source: str
    file: str
    line: int
    context: str
    path: str | None


@dataclass(frozen=True)
class Span:
    """Characters `start` to `stop` of a text, which occur `count` times in training documents.

    `bits` is the information in its words: minus log2 of the product of their unigram probabilities.
    """

    start: int
    stop: int
    text: str
    count: int
    bits: float
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Found(Place):
    """Section of a document, found by search; its place is the line with most of the words typed."""

    headings: str
    text: str


class Library:
    """Indexes of several sources, in the order in which places are listed."""

    def __init__(self, indexes: Sequence[SourceIndex]) -> None:
        self.indexes = tuple(indexes)
        self._words = sum(index.words for index in indexes)

    def trace(self, text: str) -> list[Span]:
        """Return the spans of a text that occur verbatim in training documents and are rare enough to tell anything.

        Spans are maximal, begin and end with whole words, and are sorted from the rarest words to the commonest.
        """
        data = text.encode(errors="replace").replace(b"\0", b" ")  # NUL separates documents in an index
        found = []
        most = math.log2(max(1, self._words))  # bits of a word that occurs once
        for start, stop in self.maximal_spans(data):
            wanted = data[start:stop]
            counts = [self._count(wanted[first:last]) for first, last in word_bounds(wanted)]
            bits = [math.log2(self._words / max(1, count)) for count in counts]
            total = sum(bits)
            if total >= most + _MARGIN_BITS and max(bits) > min(_COMMON_BITS, most - 2):
                first, words = len(data[:start].decode()), wanted.decode()
                count, places = self._count(wanted), self.places(wanted)
                found.append((total, Span(first, first + len(words), words, count, round(total, 1), places)))
        return [span for _, span in sorted(found, key=lambda one: -one[0])]

    def maximal_spans(self, text: bytes) -> list[tuple[int, int]]:
        """Return the byte ranges of words that occur verbatim in a training document and are in no longer such range.

        The n-th word's longest match is found by binary search in every suffix array. It is maximal if it ends after
        the longest match of the word before.
        """
        spans, end = [], 0
        starts, stops = word_bounds(text).T.tolist()
        for n, start in enumerate(starts):
            # The longest match of the word before ends at `end`: only one that goes on beyond is maximal.
            beyond = bisect_right(stops, end, lo=n)
            if beyond == len(stops):
                break
            stop = self._longest(text, start, stops, beyond)
            if stop > end:
                end = stop
                spans.append((start, end))
        return spans

    def _longest(self, text: bytes, start: int, stops: Sequence[int], beyond: int) -> int:
        """Return where the longest match of the word at `start` ends, one of `stops[beyond:]`; 0: nowhere."""
        longest = 0
        for shard in (shard for index in self.indexes for shard in index.shards):
            # Compare no more than needed: a long text seldom occurs as a whole.
            stop = min(stops[beyond] + 64, stops[-1])
            while (matched := start + shard.longest_match(text[start:stop])) == stop < stops[-1]:
                stop = min(start + 4 * (stop - start), stops[-1])
            last = bisect_right(stops, matched) - 1
            # Where the text goes on alike, the word ends there as well; else it may be part of a longer word.
            if last >= beyond and stops[last] == matched and not shard.occurrences(text[start:matched]):
                last -= 1
            if last >= beyond:
                longest = max(longest, stops[last])
        return longest

    def _count(self, wanted: bytes) -> int:
        return sum(index.count(wanted) for index in self.indexes)

    def places(self, wanted: bytes) -> tuple[Place, ...]:
        """Return up to five places of a text in training documents, each in another document if there are as many."""
        found: list[Place] = []
        for index in self.indexes:
            positions = sorted(islice(index.positions(wanted), _MOST_SEARCHED))
            by_document: dict[int, int] = {}
            for position in positions:
                if len(by_document) == _PLACES:
                    break
                by_document.setdefault(index.document(position)[1], position)
            chosen = list(by_document.values())
            chosen += [position for position in positions if position not in chosen][: _PLACES - len(chosen)]
            found += [_place_of_word(index, position) for position in sorted(chosen)]
        return tuple(found[:_PLACES])

    def find(self, typed: str, *, limit: int = 5, sources: Sequence[str] | None = None) -> list[Found]:
        """Return the best section of each of the best documents for a query; `sources` restricts the search."""
        typed = typed.encode(errors="replace").decode()
        best: dict[tuple[str, int], tuple[float, SourceIndex, Section]] = {}
        for index in (index for index in self.indexes if sources is None or index.name in sources):
            for score, section in search(index.db, typed, limit=20 * limit):
                best.setdefault((index.name, index.document(section.start)[1]), (score, index, section))
        ranked = sorted(best.values(), key=lambda one: one[0])
        return [_found(index, section, typed) for _, index, section in ranked[:limit]]

    def topics(self, *, limit: int, sources: Sequence[str]) -> list[str]:
        """Return titles of documents with long sections: first headings, or names; without markup and dates."""
        longest = "SELECT headings, start FROM sections ORDER BY headings = '', start - stop, id LIMIT ?"
        found: dict[str, None] = {}
        for index in (index for index in self.indexes if index.name in sources):
            for headings, start in index.db.execute(longest, (_MOST_TOPICS,)):
                stem = PurePath(index.document(start)[0]).stem
                title = headings.partition(" > ")[0].strip() or re.sub("[-_]", " ", stem)
                if _TITLE.fullmatch(title):
                    found[title] = None
        return list(found)[:limit]


def to_json(item: Span | Found, *, with_path: bool) -> dict[str, Any]:
    """Return a span or a section for JSON; paths are for clients on this machine."""
    value = asdict(item)
    for place in () if with_path else (value, *value.get("places", ())):
        place.pop("path", None)
    return value


def shared_sections(found: Sequence[Found], spans: Sequence[Span]) -> list[bool]:
    """Return for each section whether one of the spans traced in a reply occurs in it."""
    return [any(span.text in section.text for span in spans) for section in found]


def _found(index: SourceIndex, section: Section, typed: str) -> Found:
    text = index.text[section.start : section.stop].decode()
    number = best_line(text, typed)
    place = _place(index, section.start, section.line + number, text.split("\n")[number])
    return Found(**vars(place), headings=section.headings, text=text.strip())


def _place_of_word(index: SourceIndex, position: int) -> Place:
    _, start = index.document(position)
    first = index.text.rfind(b"\n", start, position) + 1 or start
    stop = min(end for byte in (b"\n", b"\0") if (end := index.text.find(byte, position)) >= 0)
    line = index.text[start:position].count(b"\n") + 1
    return _place(index, position, line, index.text[first:stop].decode())


def _place(index: SourceIndex, position: int, line: int, text: str) -> Place:
    """Return the place of a line of the document at `position`, by its number there and its text.

    If the file is on this machine, the number is that in the file, which may have several documents, or front matter
    that is left out. So the document's beginning is looked up in it; if that is not found (a secret was masked), the
    nearest line with the text.
    """
    name, start = index.document(position)
    context = text.strip()
    candidates = (index.input / name, index.input / name.rpartition(":")[0], index.input) if index.input else ()
    path = next((path for path in candidates if os.path.isfile(path)), None)
    if path is not None and path.stat().st_size <= _READ_BYTES and context:
        data = path.read_bytes()
        stop = index.text.find(b"\0", start)
        begins = data.find(index.text[start : min(stop, start + _READ_BEGINNING)])
        having = [number for number, text in enumerate(data.split(b"\n"), start=1) if context.encode() in text]
        line += data.count(b"\n", 0, max(0, begins))
        line = line if begins >= 0 or not having else min(having, key=lambda number: abs(number - line))
    return Place(index.name, name, line, context[:_CONTEXT], None if path is None else str(path.absolute()))


def trace_lines(spans: Sequence[Span]) -> Iterator[str]:
    """Yield the spans of a text with their places."""
    for span in spans:
        times = "once" if span.count == 1 else f"{span.count:,} times"
        yield f'"{" ".join(span.text.split())}" ({times})'
        for place in span.places:
            name = f"    {where(place)}  "
            yield name + _cut(place.context, len(name))
    if not spans:
        yield "no part of it stands in training documents, common words aside"


def find_lines(found: Sequence[Found]) -> Iterator[str]:
    """Yield the sections, numbered."""
    for number, section in enumerate(found, start=1):
        yield f"{number}  {where(section)}  {section.headings}".rstrip()
        yield f"   {_cut(section.context, 3)}"
    if not found:
        yield "nothing found"


def where(place: Place | Found) -> str:
    """Return file and line in the form that terminals make a link of, or source, document and line."""
    name = f"{place.source}: {place.file}" if place.path is None else os.path.relpath(place.path)
    return f"{name}:{place.line}"


def _cut(text: str, indent: int) -> str:
    width, line = shutil.get_terminal_size().columns - indent, " ".join(text.split())
    return line if len(line) <= width else f"{line[: max(1, width - 1)]}…"
