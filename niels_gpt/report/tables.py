"""Tables for a terminal, tab-separated files, and samples as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from niels_gpt.files.checks import Damaged

BEST, MISSING = " *", "-"  # suffix of the best of several values; placeholder of a missing value
_GAP = 2  # characters between columns
_MOST = 24  # most characters of a cell


@dataclass(frozen=True)
class Grid:
    """Table of cells with named rows and columns."""

    columns: Sequence[str]
    rows: Sequence[str]
    cells: Sequence[Sequence[str]]

    def turned(self) -> Grid:
        """Return the transposed grid."""
        return Grid(self.rows, self.columns, [[row[i] for row in self.cells] for i in range(len(self.columns))])


def lay_out(grid: Grid, *, width: int) -> list[str]:
    """Format a grid in lines of `width` characters: as given if it fits in one block, else transposed if shorter."""
    given = _blocks(grid, width)
    return given if "" not in given else min((given, _blocks(grid.turned(), width)), key=len)


def _blocks(grid: Grid, width: int) -> list[str]:
    """Format blocks of as many columns as fit side by side, one below the other, each with the row names."""
    names = [_cut(name) for name in grid.rows]
    room = width - max(map(len, names), default=0)
    columns = [[*_folded(name), *_hung([row[i] for row in grid.cells])] for i, name in enumerate(grid.columns)]
    blocks: list[list[list[str]]] = [[]]
    left = room
    for column in columns:
        size = _GAP + max(map(len, column))
        if blocks[-1] and size > left:
            blocks.append([])
            left = room
        blocks[-1].append(column)
        left -= size
    lines: list[str] = []
    for block in blocks:
        lines += [""] if lines else []
        lines += _lines(["", "", *names], block)
    return lines


def _lines(names: Sequence[str], block: Sequence[Sequence[str]]) -> list[str]:
    first = max(map(len, names))
    sizes = [max(map(len, column)) for column in block]
    lines = [
        (
            name.ljust(first)
            + "".join(f"{'':{_GAP}}{column[i]:>{size}}" for column, size in zip(block, sizes, strict=True))
        )
        for i, name in enumerate(names)
    ]
    return [line.rstrip() for i, line in enumerate(lines) if i > 0 or line.strip()]  # no empty line above the head


def _hung(cells: Sequence[str]) -> list[str]:
    """Truncate and pad a column's cells so that digits align: the mark of the best hangs over at the right."""
    cut = [cell if len(cell) <= _MOST else f"{cell[: _MOST - 1]}…" for cell in cells]
    marked = any(cell.endswith(BEST) for cell in cut)
    return [cell + " " * len(BEST) if marked and not cell.endswith(BEST) else cell for cell in cut]


def _folded(name: str) -> tuple[str, str]:
    """Break a column's name into two lines at its last space, if it has one."""
    above, _, below = name.rpartition(" ")
    return _cut(above), _cut(below)


def _cut(text: str) -> str:
    """Truncate a long text at its beginning: names of parameters differ at the end."""
    return text if len(text) <= _MOST else f"…{text[1 - _MOST :]}"


def write_tsv(path: Path, rows: Sequence[Mapping[str, float | str]]) -> None:
    """Write rows as tab-separated values, with the columns of the first row."""
    columns = list(rows[0])
    lines = ["\t".join(columns)] + ["\t".join(_cell(row[c]) for c in columns) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(value: float | str) -> str:
    return str(value) if isinstance(value, str | int) else f"{value:.6g}"  # integers, such as steps, keep all digits


def read_tsv(path: Path) -> list[dict[str, float]]:
    """Read a curve of numeric columns; raise Damaged if it is not one or has no point."""
    return parse_tsv(path.read_text(encoding="utf-8", errors="replace"), path=path)


def parse_tsv(text: str, *, path: str | Path) -> list[dict[str, float]]:
    """Parse the text of a curve like `read_tsv`; `path` is for error messages."""
    head, *lines = text.splitlines() or [""]
    try:
        rows = [dict(zip(head.split("\t"), map(float, line.split("\t")), strict=True)) for line in lines]
    except ValueError as error:
        raise Damaged(path, f"is no curve ({error})") from error
    if not rows:
        raise Damaged(path, "holds no point")
    return rows


def format_samples(sections: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Return Markdown with the (prompt, text) pairs under each title; a fence is longer than any in its text."""
    parts = []
    for section, samples in sections.items():
        parts.append(f"# {section}\n")
        for prompt, text in samples:
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            title = next(iter(prompt.strip().splitlines()), repr(prompt))  # a prompt may be blank
            parts.append(f"## {title}\n\n{fence}text\n{text}\n{fence}\n")
    return "\n".join(parts)


class ScoreRow(NamedTuple):
    """Row of the score table, numbers formatted for display."""

    model: str
    held_out: str
    nats: str
    bits: str
    tokens: str


HEAD = ScoreRow("model", "validation set", "nats/token", "bits per byte", "tokens")


def score_rows(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[ScoreRow]:
    """Return the table's rows for {model: {held-out stream: {nats, bits_per_byte, tokens, ...}}}.

    A stream with quotes of training text gets a second row, of its tokens outside of quotes.
    """
    rows = []
    for model, table in scores.items():
        for name, score in table.items():
            rows.append(_row(model, name, score, score["tokens"]))
            if quoted := score.get("quoted_tokens"):
                rows.append(_row(model, f"{name} without quotes", score, score["tokens"] - quoted, "_without_quotes"))
    return rows


def _row(model: str, name: str, score: Mapping[str, Any], tokens: int, which: str = "") -> ScoreRow:
    nats, bits = (
        MISSING if (mean := score[f"{key}{which}"]) is None else f"{mean:.4f}" for key in ("nats", "bits_per_byte")
    )
    return ScoreRow(model, name, nats, bits, f"{tokens:,}")
