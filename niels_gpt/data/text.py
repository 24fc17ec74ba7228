"""Anybody's own text: a file, or a folder of .txt, .md, .jsonl and .parquet files.

A document is a file of text, or a row of a table (its text field chosen as for any dataset).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from niels_gpt.data.fields import select_text_field
from niels_gpt.data.files import list_files, read_text
from niels_gpt.data.types import PretrainSample

SUFFIXES = (".txt", ".md", ".jsonl", ".parquet")


def iter_text(path: str) -> Iterator[PretrainSample]:
    """Every document as a sample; meta holds its place below the folder and whether its bytes were UTF-8."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist")
    root = path if os.path.isdir(path) else os.path.dirname(path) or "."
    files = list_files(path, SUFFIXES) if os.path.isdir(path) else [os.path.abspath(path)]
    if os.path.isfile(path) and not path.endswith(SUFFIXES):
        raise ValueError(f"{path} is no text file: {', '.join(SUFFIXES)} can be read")
    for file in files:
        name = Path(file).relative_to(os.path.abspath(root)).as_posix()
        if file.endswith((".txt", ".md")):
            text, is_utf8 = read_text(file)
            yield PretrainSample(text=text, source="text", meta={"path": name, "utf8": is_utf8})
        else:
            rows = _parquet_rows(file) if file.endswith(".parquet") else _json_rows(file)
            for number, row, is_utf8 in rows:
                meta = {"path": f"{name}:{number}", "utf8": is_utf8}
                yield PretrainSample(text=select_text_field(row), source="text", meta=meta)


def _parquet_rows(file: str) -> Iterator[tuple[int, dict[str, Any], bool]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(file, pre_buffer=False).iter_batches(batch_size=256):
            for row in batch.to_pylist():
                yield number, row, True
                number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{file} is no parquet file, or is damaged ({error}): mend it or remove it") from error


def _json_rows(file: str) -> Iterator[tuple[int, dict[str, Any], bool]]:
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            text = line.decode("utf-8", errors="replace")
            try:
                row = json.loads(text.removeprefix("\ufeff"))
            except ValueError as error:
                raise ValueError(f"{file}, line {number}, is not JSON ({error}): mend it or remove it") from error
            if not isinstance(row, dict):
                raise ValueError(f"{file}, line {number}, holds no JSON object: each line must be one")
            yield number, row, "\ufffd" not in text
