"""Display of duplicates: their table on the report page, and pairs side by side in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any, NamedTuple

_SHOWN = 12  # most lines shown of a pair
_GAP = " | "


class DataRow(NamedTuple):
    """Row of the duplicates table, numbers formatted for display."""

    source: str
    documents: str
    repeated: str
    near: str
    clusters: str
    left_out: str
    runs: str
    characters: str


HEAD = DataRow(
    "source",
    "documents",
    "repeat another's text",
    "near duplicates",
    "in clusters",
    "skipped",
    "% of held-out 13-grams in training text",
    "% of held-out characters in such",
)


def data_rows(data: Mapping[str, Mapping[str, Any]]) -> list[DataRow]:
    """Return the table's rows for {source: duplicate counts, and shares of held-out text found in training text}."""
    return [
        DataRow(
            name,
            f"{row['documents']:,}",
            f"{row['exact']:,}",
            f"{row['near']:,}",
            f"{row['clusters']:,}",
            f"{row['left_out']:,}",
            f"{100 * row['runs_in_train']:.2f}",
            f"{100 * row['characters_in_train']:.2f}",
        )
        for name, row in data.items()
    ]


def side_by_side(left: str, right: str, *, width: int) -> Iterator[str]:
    """Yield two texts in two columns of `width` characters in all: common lines first, marked "=", then the others."""
    a, b = ([" ".join(line.split()) for line in text.splitlines() if line.strip()] for text in (left, right))
    column = max(8, (width - len(_GAP) - 2) // 2)
    shown = 0
    blocks = sorted(SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes(), key=lambda block: block[0] != "equal")
    for kind, a_first, a_last, b_first, b_last in blocks:
        for place in range(max(a_last - a_first, b_last - b_first)):
            if shown == _SHOWN:
                yield "  ..."
                return
            one, other = (
                _cut(lines[first + place] if first + place < last else "", column)
                for lines, first, last in ((a, a_first, a_last), (b, b_first, b_last))
            )
            yield f"{'=' if kind == 'equal' else ' '} {one:<{column}}{_GAP}{other}".rstrip()
            shown += 1


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."
