"""Anybody's own text: a file, or a folder of them. A document is a file of text (.txt, .md), or a row of a table
(.jsonl, .csv, .parquet: its text field chosen as for any dataset); all but parquet also packed (.gz, .zst)."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from niels_gpt.data.fields import select_text_field
from niels_gpt.data.files import decode_text, list_files, opened, unpacked_suffix
from niels_gpt.data.json_lines import iter_json_lines
from niels_gpt.data.types import PretrainSample

SUFFIXES = (".txt", ".md", ".jsonl", ".csv", ".parquet")
_FRONT_MATTER = re.compile(r"\A\ufeff?---\r?\n.*?^---\r?\n", re.DOTALL | re.MULTILINE)


def iter_text(path: str, *, glob: str | None = None, front_matter: bool = True) -> Iterator[PretrainSample]:
    """Every document as a sample; meta holds its place below the folder and, if it was not UTF-8, its encoding.

    `glob` chooses files by their place below the folder ("2024/*.md"); without `front_matter` the YAML between two
    lines of --- at a file's head is dropped.
    """
    for file, name in text_files(path, SUFFIXES, glob=glob):
        kind = unpacked_suffix(file)
        if kind in (".txt", ".md"):
            with opened(file) as stream:
                text, encoding = decode_text(stream.read())
            text = text if front_matter else _FRONT_MATTER.sub("", text, count=1)
            yield _sample(text, name, encoding)
        elif kind == ".jsonl":
            for number, row, whole in iter_json_lines(file):
                yield _sample(_text_of(row, file, number), f"{name}:{number}", "utf-8" if whole else "damaged UTF-8")
        elif kind == ".csv":
            for number, text, encoding in _csv_texts(file):
                yield _sample(text, f"{name}:{number}", encoding)
        else:
            for number, row in _parquet_rows(file):
                yield _sample(_text_of(row, file, number), f"{name}:{number}", "utf-8")


def text_files(path: str, suffixes: tuple[str, ...], *, glob: str | None) -> Iterator[tuple[str, str]]:
    """(file, its place below the folder) of a file or of all in a folder that have such an ending."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist")
    if os.path.isfile(path):
        if unpacked_suffix(path) not in suffixes:
            raise ValueError(f"{path} is no text file: {', '.join(suffixes)} can be read")
        yield os.path.abspath(path), os.path.basename(path)
        return
    found = False
    for file in list_files(path, {*suffixes, ".gz", ".zst"}):
        name = Path(file).relative_to(os.path.abspath(path)).as_posix()
        if unpacked_suffix(file) in suffixes and (glob is None or PurePosixPath(name).match(glob)):
            found = True
            yield file, name
    if glob is not None and not found:
        raise ValueError(f"no file in {path} is called like {glob!r}: mend the glob, or leave it out for all")


def _sample(text: str, path: str, encoding: str) -> PretrainSample:
    return PretrainSample(text=text, source="text", meta={"path": path, "utf8": encoding == "utf-8", "encoding": encoding})


def _text_of(row: dict[str, Any], file: str, number: int) -> str:
    try:
        return select_text_field(row)
    except ValueError as error:
        raise ValueError(f"{file}, row {number}: {error}") from error


def _csv_texts(file: str) -> Iterator[tuple[int, str, str]]:
    with opened(file) as stream:
        text, encoding = decode_text(stream.read())
    csv.field_size_limit(2**31 - 1)
    rows = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    columns = next(rows, [])
    if "text" not in columns and len(columns) != 1:
        raise ValueError(f"{file} has the columns {columns}, none of them called text: name the one to read so")
    place = columns.index("text") if "text" in columns else 0
    for number, row in enumerate(rows, start=2):
        if len(row) > place:
            yield number, row[place], encoding


def _parquet_rows(file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(file, pre_buffer=False).iter_batches(batch_size=256):
            for row in batch.to_pylist():
                yield number, row
                number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{file} is no parquet file, or is damaged ({error}): mend it or remove it") from error
