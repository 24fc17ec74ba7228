"""Tables in parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from niels_gpt.data.readers.files import opened


def iter_parquet_rows(file: str) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield (row number from 0, row, encoding), a few rows in memory at a time.

    Raise a ValueError if two columns have one name, of which a row would keep the last.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    with opened(file) as stream:
        try:
            table = pq.ParquetFile(stream, pre_buffer=False)
            columns = table.schema_arrow.names
            if twice := [name for name in columns if columns.count(name) > 1]:
                raise ValueError(f"{file} has two columns {twice[0]!r}: rename one")
            for batch in table.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    yield number, row, "utf-8"
                    number += 1
            if number != table.metadata.num_rows:
                raise pa.ArrowInvalid(f"{number:,} of its {table.metadata.num_rows:,} rows can be read")
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} is no parquet file, or is damaged ({error}): mend it or remove it") from error
