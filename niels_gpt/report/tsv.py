"""Curves as tab-separated files: a header, then a line a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from niels_gpt.files.damage import Damaged


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
