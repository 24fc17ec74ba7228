"""Sketches on disk: one parquet file per part of a source, with one row per document or chat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from niels_gpt.data.corpus.parts import (
    CHAT_SCHEMA,
    PARQUET,
    Part,
    Texts,
    list_array,
    number_array,
    opened,
    read_chats,
    read_column,
    read_keys,
    read_texts,
    reading_part,
    text_array,
)
from niels_gpt.data.corpus.sketch import Sketch, sketch_texts
from niels_gpt.files.checks import sha256_file
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Engine, Record, Worker, make_parts

# `key` is what split rules group rows by (a chat's tree, or the row's id); `split` is the source's own split, if any.
SKETCH_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("split", pa.string()),
        ("text", pa.uint64()),
        ("words", pa.uint64()),
        ("scale", pa.uint8()),
        ("hashes", pa.list_(pa.uint64())),
    ]
)
_NUMBERS = ["text", "words", "scale", "hashes"]


@dataclass(frozen=True)
class Sketches:
    """Sketches of consecutive rows as columns; the hashes of row i are hashes[starts[i] : starts[i + 1]]."""

    text: np.ndarray
    words: np.ndarray
    scale: np.ndarray
    starts: np.ndarray
    hashes: np.ndarray


@dataclass(frozen=True)
class PartToSketch:
    """Part of a source to sketch, and the store to write the sketches to."""

    texts: Store
    part: Part
    sketches: Store

    @property
    def name(self) -> str:
        return self.part.name


def make_sketches(
    engine: Engine, texts: Texts, store: Store, *, say: Callable[[str], object], tick: Callable[[int], object]
) -> list[Part]:
    """Write a part of sketches for each part of `texts` to `store`; `say` reports messages, `tick` bytes done."""
    items = [PartToSketch(texts.store, part, store) for part in texts.parts]
    records = make_parts(engine, sketch_part, items, store=store, say=say, tick=tick)
    return [Part(**part) for record in records for part in record["files"]]


def sketch_part(item: PartToSketch, worker: Worker) -> Record:
    """Sketch every row of one part, and return the record of the file written."""
    with reading_part(item.texts, item.part) as path, item.sketches.writing(item.part.file) as out:
        keys, splits = read_keys(path), read_column(path, "split")
        done = 0
        with pq.ParquetWriter(out, SKETCH_SCHEMA, **PARQUET) as writer:
            for texts in read_wording(path):
                last = done + len(texts)
                writer.write_table(_table(sketch_texts(texts), keys[done:last], splits[done:last]))
                done = last
                worker.tick(sum(map(len, texts)))
        part = Part(item.part.file, done, item.part.text_bytes, out.stat().st_size, sha256_file(out))
    return {"files": [asdict(part)]}


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


def transcript(messages: Sequence[Mapping[str, str]]) -> str:
    """Render a chat as text, one "role: content" per message."""
    return "".join(f"{message['role']}: {message['content']}\n" for message in messages)


def read_sketches(texts: Texts) -> Iterator[Sketches]:
    """Yield the sketches of a source in order, one row group at a time."""
    for part in texts.parts:
        with reading_part(texts.store, part) as path, opened(path, SKETCH_SCHEMA) as file:
            for group in range(file.num_row_groups):
                yield _numbers(file.read_row_group(group, columns=_NUMBERS))


def read_sides(texts: Texts, rows: np.ndarray) -> tuple[list[str], list[str | None]]:
    """Return the keys and the source's own splits of the given rows (ascending)."""
    keys: list[str] = []
    splits: list[str | None] = []
    for wanted, own_keys, own_splits in _sides(texts, rows):
        keys += [own_keys[row] for row in wanted]
        splits += [own_splits[row] for row in wanted]
    return keys, splits


def rows_of_keys(texts: Texts, keys: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (row, key) of all rows that have one of these keys."""
    first = 0
    for _, own_keys, _ in _sides(texts, None):
        yield from ((row, key) for row, key in enumerate(own_keys, start=first) if key in keys)
        first += len(own_keys)


def _sides(texts: Texts, rows: np.ndarray | None) -> Iterator[tuple[np.ndarray, list[str], list[str | None]]]:
    """Yield (wanted rows within the part, all its keys, all its splits) of each part that has some of `rows`.

    With `rows` None, yield every part; the wanted rows are then empty.
    """
    first = 0
    for part in texts.parts:
        last = first + part.rows
        wanted = np.empty(0) if rows is None else rows[slice(*np.searchsorted(rows, (first, last)))] - first
        first = last
        if rows is None or len(wanted):
            with reading_part(texts.store, part) as path, opened(path, SKETCH_SCHEMA) as file:
                table = file.read(columns=["key", "split"])
                yield wanted, table["key"].to_pylist(), table["split"].to_pylist()


def _table(sketches: Sequence[Sketch], keys: list[str], splits: list[str | None]) -> pa.Table:
    hashes = np.concatenate([sketch.hashes for sketch in sketches])
    columns = [
        text_array(keys),
        text_array(splits),
        number_array(np.array([sketch.text for sketch in sketches], dtype=np.uint64)),
        number_array(np.array([sketch.words for sketch in sketches], dtype=np.uint64)),
        number_array(np.array([sketch.scale for sketch in sketches], dtype=np.uint8)),
        list_array([len(sketch.hashes) for sketch in sketches], number_array(hashes)),
    ]
    return pa.Table.from_arrays(columns, schema=SKETCH_SCHEMA)


def _numbers(table: pa.Table) -> Sketches:
    lists = table["hashes"].combine_chunks()
    return Sketches(
        text=table["text"].to_numpy(),
        words=table["words"].to_numpy(),
        scale=table["scale"].to_numpy(),
        starts=lists.offsets.to_numpy().astype(np.int64) - lists.offsets[0].as_py(),
        hashes=lists.flatten().to_numpy(),
    )
