"""Documents on disk: one parquet file a source, one row a document, written and read with flat memory.

Columns: `id` (unique within the source: a path, a title, a number), `text`, and `split` (the split the source itself
gives the row, or null where splitting is ours to do).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILE_NAME = "documents.parquet"
SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("split", pa.string())])
# A row group is what a reader holds at once: whichever of the two bounds is met first closes it.
_GROUP_BYTES = 4 << 20
_GROUP_ROWS = 4096


@dataclass(frozen=True)
class Document:
    id: str
    text: str
    split: str | None = None


@dataclass(frozen=True)
class DocumentCount:
    documents: int
    bytes: int


def write_documents(folder: Path, documents: Iterable[Document]) -> DocumentCount:
    """Write them to `folder`/documents.parquet in order. Equal documents give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    count = total_bytes = group_bytes = 0
    group: list[Document] = []
    with pq.ParquetWriter(folder / FILE_NAME, SCHEMA, compression="zstd") as writer:

        def flush() -> None:
            columns = {name: [getattr(d, name) for d in group] for name in SCHEMA.names}
            writer.write_table(pa.table(columns, schema=SCHEMA))
            group.clear()

        for document in documents:
            size = len(document.text.encode("utf-8"))
            count, total_bytes, group_bytes = count + 1, total_bytes + size, group_bytes + size
            group.append(document)
            if group_bytes >= _GROUP_BYTES or len(group) >= _GROUP_ROWS:
                flush()
                group_bytes = 0
        if group:
            flush()
    return DocumentCount(documents=count, bytes=total_bytes)


def read_splits(folder: Path) -> list[str | None]:
    """The `split` column: for each row the split that the source gives it."""
    splits: list[str | None] = pq.read_table(folder / FILE_NAME, columns=["split"])["split"].to_pylist()
    return splits


def count_documents(folder: Path) -> int:
    return int(pq.ParquetFile(folder / FILE_NAME).metadata.num_rows)


def read_texts(folder: Path, rows: np.ndarray) -> Iterator[list[str]]:
    """Texts of the given rows (ascending), a list per row group: never more than a few MB at once."""
    file = pq.ParquetFile(folder / FILE_NAME)
    first = 0
    for group in range(file.num_row_groups):
        last = first + file.metadata.row_group(group).num_rows
        lo, hi = np.searchsorted(rows, (first, last))
        if hi > lo:
            texts = file.read_row_group(group, columns=["text"])["text"]
            yield texts.take(pa.array(rows[lo:hi] - first)).to_pylist()
        first = last
