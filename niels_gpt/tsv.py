"""Curves on disk: a header, then a line a point, as `dvc plots` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def write_tsv(path: Path, rows: Sequence[Mapping[str, float | str]]) -> None:
    """All rows with the first one's columns."""
    columns = list(rows[0])
    lines = ["\t".join(columns)] + ["\t".join(_cell(row[c]) for c in columns) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def read_tsv(path: Path) -> list[dict[str, float]]:
    """A curve whose columns are all numbers."""
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    return [dict(zip(head.split("\t"), map(float, line.split("\t")), strict=True)) for line in lines]
