"""Tables for a terminal, tab-separated files, and samples as markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from niels_gpt.files.checks import Damaged

BEST, MISSING = " *", "-"  # behind the best value of several, and in place of one that there is not
_GAP = 2
_MOST = 24  # characters of a cell


@dataclass(frozen=True)
class Grid:
    """Cells by row and column, each row and each column with a name."""

    columns: Sequence[str]
    rows: Sequence[str]
    cells: Sequence[Sequence[str]]

    def turned(self) -> Grid:
        """Its columns as rows."""
        return Grid(self.rows, self.columns, [[row[i] for row in self.cells] for i in range(len(self.columns))])


def lay_out(grid: Grid, *, width: int) -> list[str]:
    """Lines of at most `width` characters: as given where that is one block, else the way round that takes fewer."""
    given = _blocks(grid, width)
    return given if "" not in given else min((given, _blocks(grid.turned(), width)), key=len)


def _blocks(grid: Grid, width: int) -> list[str]:
    """As many columns side by side as fit, the others below, each block with the names of the rows."""
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
    return [line.rstrip() for i, line in enumerate(lines) if i > 0 or line.strip()]  # a head of one line takes one


def _hung(cells: Sequence[str]) -> list[str]:
    """A column whose digits stand below digits: marks hang over at the right."""
    cut = [cell if len(cell) <= _MOST else f"{cell[: _MOST - 1]}…" for cell in cells]
    marked = any(cell.endswith(BEST) for cell in cut)
    return [cell + " " * len(BEST) if marked and not cell.endswith(BEST) else cell for cell in cut]


def _folded(name: str) -> tuple[str, str]:
    """A column's name on two lines, cut at its last space where it has one."""
    above, _, below = name.rpartition(" ")
    return _cut(above), _cut(below)


def _cut(text: str) -> str:
    """A long text by its end, which is where names of parameters differ."""
    return text if len(text) <= _MOST else f"…{text[1 - _MOST :]}"


def write_tsv(path: Path, rows: Sequence[Mapping[str, float | str]]) -> None:
    """All rows with the first one's columns."""
    columns = list(rows[0])
    lines = ["\t".join(columns)] + ["\t".join(_cell(row[c]) for c in columns) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(value: float | str) -> str:
    return str(value) if isinstance(value, str | int) else f"{value:.6g}"  # a count of steps to its last digit


def read_tsv(path: Path) -> list[dict[str, float]]:
    """A curve whose columns are all numbers, with a point at the least."""
    return parse_tsv(path.read_text(encoding="utf-8", errors="replace"), path=path)


def parse_tsv(text: str, *, path: str | Path) -> list[dict[str, float]]:
    """The same of a file's text, wherever that was kept."""
    head, *lines = text.splitlines() or [""]
    try:
        rows = [dict(zip(head.split("\t"), map(float, line.split("\t")), strict=True)) for line in lines]
    except ValueError as error:
        raise Damaged(path, f"is no curve ({error})") from error
    if not rows:
        raise Damaged(path, "holds no point")
    return rows


def format_samples(sections: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Markdown: under each title its (prompt, text) pairs. A fence is longer than any the model can have written."""
    parts = []
    for section, samples in sections.items():
        parts.append(f"# {section}\n")
        for prompt, text in samples:
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            title = next(iter(prompt.strip().splitlines()), repr(prompt))  # a prompt may be a line's end alone
            parts.append(f"## {title}\n\n{fence}text\n{text}\n{fence}\n")
    return "\n".join(parts)
