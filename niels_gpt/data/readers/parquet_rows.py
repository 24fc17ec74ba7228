"""Tables in parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from niels_gpt.data.readers.files import opened


def iter_parquet_rows(file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 0, row), a few rows in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    with opened(file) as stream:
        try:
            for batch in pq.ParquetFile(stream, pre_buffer=False).iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    yield number, row
                    number += 1
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} is no parquet file, or is damaged ({error}): mend it or remove it") from error
