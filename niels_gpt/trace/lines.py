"""Spans and sections as lines for a terminal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence

from niels_gpt.trace.library import Found, Place, Span


def trace_lines(spans: Sequence[Span]) -> Iterator[str]:
    """Yield the spans of a text with their places."""
    for span in spans:
        times = "once" if span.count == 1 else f"{span.count:,} times"
        yield f'"{_one_line(span.text)}" ({times})'
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


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, indent: int) -> str:
    width = shutil.get_terminal_size().columns - indent
    line = _one_line(text)
    return line if len(line) <= width else f"{line[: max(1, width - 1)]}…"
