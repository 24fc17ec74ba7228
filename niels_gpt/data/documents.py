"""Documents and chats on disk: a parquet file, one row each, written and read a row group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from niels_gpt.data.arrays import messages_array, number_array, text_array
from niels_gpt.data.types import Chat, Document
from niels_gpt.files.damage import Damaged

_S = pa.string()
DOCUMENT_SCHEMA = pa.schema([("id", _S), ("text", _S), ("split", _S)])
CHAT_SCHEMA = pa.schema(
    [("id", _S), ("messages", pa.list_(pa.struct([("role", _S), ("content", _S)]))), ("split", _S), ("group", _S)]
)
_COLUMNS: dict[str, Callable[[list[Any]], pa.Array]] = {"messages": messages_array}  # of another kind than text
# No dictionary: hashing whole texts to find repeated ones took more than half of the writing time. Checksums: without
# them 90 of 400 flipped bits were read as other text.
PARQUET: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
# A row group is what a reader holds at once: whichever of the two bounds is met first closes it.
_GROUP_BYTES = 4 << 20
_GROUP_ROWS = 4096


@dataclass(frozen=True)
class RowCount:
    rows: int
    bytes: int


def write_documents(path: Path, documents: Iterable[Document], *, tick: Callable[[int], object] = bool) -> RowCount:
    """Write a parquet file, in order. Equal documents give equal bytes; `tick` is told each one's size."""
    return _write(path, documents, DOCUMENT_SCHEMA, tick)


def write_chats(path: Path, chats: Iterable[Chat], *, tick: Callable[[int], object] = bool) -> RowCount:
    """The same for chats."""
    return _write(path, chats, CHAT_SCHEMA, tick)


def read_column(path: Path, name: str) -> list[Any]:
    """One short column (`split`, `group`, `id`) of all rows."""
    with opened(path) as file:
        values: list[Any] = file.read(columns=[name])[name].to_pylist()
        if len(values) != file.metadata.num_rows:
            raise pa.ArrowInvalid(f"its column {name} does not have all rows")
    return values


def read_keys(path: Path) -> list[str]:
    """By what a rule holds each row out: its group, or its own id."""
    with opened(path) as file:
        holds_chats = file.schema_arrow == CHAT_SCHEMA
    ids = read_column(path, "id")
    if not holds_chats:
        return ids
    return [group or own for group, own in zip(read_column(path, "group"), ids, strict=True)]


def read_texts(path: Path, rows: np.ndarray) -> Iterator[list[str]]:
    """Texts of the given rows (ascending), a list per row group: never more than a few MB at once."""
    yield from _read(path, rows, "text")


def read_chats(path: Path, rows: np.ndarray) -> Iterator[list[list[dict[str, str]]]]:
    """Messages of the given rows (ascending), a list per row group."""
    yield from _read(path, rows, "messages")


def _write(
    path: Path, items: Iterable[Document] | Iterable[Chat], schema: pa.Schema, tick: Callable[[int], object]
) -> RowCount:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = total_bytes = group_bytes = 0
    group: list[Document | Chat] = []
    with pq.ParquetWriter(path, schema, **PARQUET) as writer:

        def flush() -> None:
            arrays = [_COLUMNS.get(name, text_array)([getattr(item, name) for item in group]) for name in schema.names]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            group.clear()

        for item in items:
            size = item.bytes()
            count, total_bytes, group_bytes = count + 1, total_bytes + size, group_bytes + size
            group.append(item)
            tick(size)
            if group_bytes >= _GROUP_BYTES or len(group) >= _GROUP_ROWS:
                flush()
                group_bytes = 0
        if group:
            flush()
    return RowCount(rows=count, bytes=total_bytes)


def _read(path: Path, rows: np.ndarray, column: str) -> Iterator[list[Any]]:
    with opened(path) as file:
        first = 0
        for group in range(file.num_row_groups):
            last = first + file.metadata.row_group(group).num_rows
            lo, hi = np.searchsorted(rows, (first, last))
            if hi > lo:
                values = file.read_row_group(group, columns=[column])[column]
                yield values.take(number_array(rows[lo:hi] - first)).to_pylist()
            first = last


@contextmanager
def opened(path: Path, *schemas: pa.Schema) -> Iterator[pq.ParquetFile]:
    """A file of one of these schemas (documents or chats, if none is given), its checksums checked as it is read; its
    table of contents has none, but must agree with itself."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            contents = file.metadata
            rows = sum(contents.row_group(group).num_rows for group in range(contents.num_row_groups))
            if rows != contents.num_rows or file.schema_arrow not in (schemas or (DOCUMENT_SCHEMA, CHAT_SCHEMA)):
                raise pa.ArrowInvalid("its table of contents does not agree with itself")
            yield file
    except FileNotFoundError:
        raise Damaged(path, "is missing: make it again") from None
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
        raise Damaged(path, f"is damaged ({' '.join(str(error).split())}): make it again") from error
