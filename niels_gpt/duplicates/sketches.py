"""Sketches of a source as arrays, read from the columns that the load stage wrote beside the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from niels_gpt.data.corpus.parts import (
    CHAT_SCHEMA,
    Texts,
    opened,
    read_chats,
    read_column,
    read_keys,
    read_texts,
    reading_part,
    transcript,
)

_NUMBERS = ["text_hash", "words_hash", "scale", "hashes"]


@dataclass(frozen=True)
class Sketches:
    """Sketches of consecutive rows as columns; the hashes of row i are hashes[starts[i] : starts[i + 1]]."""

    text: np.ndarray
    words: np.ndarray
    scale: np.ndarray
    starts: np.ndarray
    hashes: np.ndarray


def read_wording(path: Path, rows: np.ndarray | None = None) -> Iterator[list[str]]:
    """Yield the texts of all rows of a part, or of `rows` (ascending), one list per row group.

    A chat is rendered as a transcript of its turns, so that it matches the same dialogue in a text source.
    """
    with opened(path) as file:
        holds_chats = file.schema_arrow == CHAT_SCHEMA
        rows = np.arange(file.metadata.num_rows) if rows is None else rows
    if not holds_chats:
        yield from read_texts(path, rows)
        return
    for batch in read_chats(path, rows):
        yield [transcript(messages) for messages in batch]


def read_sketches(texts: Texts) -> Iterator[Sketches]:
    """Yield the sketches of a source in order, one row group at a time."""
    for part in texts.parts:
        with reading_part(texts.store, part) as path, opened(path) as file:
            for group in range(file.num_row_groups):
                yield _numbers(file.read_row_group(group, columns=_NUMBERS))


def read_sides(texts: Texts, rows: np.ndarray) -> tuple[list[str], list[str | None]]:
    """Return the keys and the source's own splits of the given rows (ascending)."""
    keys: list[str] = []
    splits: list[str | None] = []
    first = 0
    for part in texts.parts:
        wanted = rows[slice(*np.searchsorted(rows, (first, first + part.rows)))] - first
        first += part.rows
        if len(wanted):
            with reading_part(texts.store, part) as path:
                own_keys, own_splits = read_keys(path), read_column(path, "split")
            keys += [own_keys[row] for row in wanted]
            splits += [own_splits[row] for row in wanted]
    return keys, splits


def rows_of_keys(texts: Texts, keys: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (row, key) of all rows that have one of these keys."""
    first = 0
    for part in texts.parts:
        with reading_part(texts.store, part) as path:
            yield from ((row, key) for row, key in enumerate(read_keys(path), start=first) if key in keys)
        first += part.rows


def _numbers(table: pa.Table) -> Sketches:
    lists = table["hashes"].combine_chunks()
    return Sketches(
        text=table["text_hash"].to_numpy(),
        words=table["words_hash"].to_numpy(),
        scale=table["scale"].to_numpy(),
        starts=lists.offsets.to_numpy().astype(np.int64) - lists.offsets[0].as_py(),
        hashes=lists.flatten().to_numpy(),
    )
