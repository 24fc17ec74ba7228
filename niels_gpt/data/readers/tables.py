"""Readers of JSON Lines, CSV and parquet, choice of the text field, and checks of local copies of hub datasets."""

import csv
import io
import json
import math
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from niels_gpt.data.readers.files import decode_text, list_files, opened, read_bytes, read_lines, unpacked_suffix


class TextColumn:
    """Selector of the text field in the rows of one file: `text`, or else the first string field of the first row.

    A row whose field is null has no text. Falling back to another field would train on titles and names.
    """

    def __init__(self) -> None:
        self._names: list[str] = []  # "text" and, if the first row has no such field, the one read instead

    def read(self, row: Mapping[str, Any], *, place: str) -> tuple[str, str]:
        """Return (text, field name), with "" for null; raise a ValueError that starts with `place` if there is none."""
        if not self._names:
            self._names = ["text"] if "text" in row else ["text", _first_text(row, place)]
        name = next((name for name in self._names if name in row), None)
        if name is None:
            known = " or ".join(map(repr, self._names))
            raise ValueError(f"{place}: it has no field {known}, as rows before it; {_keys(row)}")
        value = row[name]
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{place}: its field {name!r} is no text but {type(value).__name__}: fix or remove it")
        return value or "", name


def _first_text(row: Mapping[str, Any], place: str) -> str:
    for name, value in row.items():
        if value is None:
            null = f"its field {name!r} is null and may be the text"
            raise ValueError(f"{place}: {null}: call the field to read text; {_keys(row)}")
        if isinstance(value, str):
            return name
    raise ValueError(f"{place}: no field of this row is text; {_keys(row)}")


def check_texts(sample: Mapping[str, Any], names: Sequence[str], *, place: str) -> None:
    """Raise a ValueError if one of these fields is missing or not a string; its message starts with `place`."""
    missing = [name for name in names if not isinstance(sample.get(name), str)]
    if missing:
        raise ValueError(f"{place} has no text in {', '.join(missing)}; {_keys(sample)}")


def _keys(row: Mapping[str, Any]) -> str:
    return f"its keys are {sorted(map(str, row))}"


_DELIMITERS = ",;\t|"
_EXCEL_LINE = re.compile(r'\A"?sep=(.)"?(?:\r\n|\r|\n)', re.IGNORECASE)  # first line, specific to Excel


def iter_csv_texts(file: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield (row number, text, column name, encoding) of every row; the header is row 1 (2 below a "sep=" line).

    The text is the column `text`, or the only column. Raise a ValueError that names the row if a quote is not closed or
    a row has too few or too many cells, and one that names the file if some of its characters are in no cell.
    """
    text, encoding = decode_text(read_bytes(file))
    csv.field_size_limit(2**31 - 1)
    above = 0  # lines above the header
    if excel := _EXCEL_LINE.match(text):
        text, above = text[excel.end() :], 1
    delimiter = excel[1] if excel else _find_delimiter(text)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    # Characters that are not markup, in the file and in the cells: the parser must not lose any.
    markup = (delimiter, '"', "\r", "\n")
    number, first_line, left = 1 + above, 1 + above, _length(text, markup)
    columns: list[str] = []
    try:
        for row in rows:
            where = f"{file}, row {number} (line {first_line}),"
            left -= _length("".join(row), markup)
            if not columns:
                columns = row
                if columns.count("text") != 1 and len(columns) != 1:
                    fault = "more than one" if "text" in columns else "none"
                    raise ValueError(
                        f"{file} has the columns {row}, {fault} of them called text: name the one to read so"
                    )
                place = columns.index("text") if "text" in columns else 0
            elif row and len(row) <= place:
                raise ValueError(f"{where} has no column {place + 1}, the text: fix or remove it")
            elif any(row[len(columns) :]):
                raise ValueError(
                    f"{where} has {len(row)} cells in {len(columns)} columns: put quotes around a cell that holds "
                    f"{delimiter!r}"
                )
            elif row:
                yield number, row[place], columns[place], encoding
            number, first_line = number + 1, rows.line_num + above + 1
    except csv.Error as error:
        reason = "a quote is opened and never closed" if "end of data" in str(error) else str(error)
        where = f"{file}, row {number} (lines {first_line} to {rows.line_num + above}),"
        raise ValueError(f"{where} is no CSV ({reason}): fix or remove it") from error
    if left:
        raise ValueError(f"{file}: {left:,} of {_length(text, markup):,} characters are in no cell: fix or remove it")


def _length(text: str, markup: tuple[str, ...]) -> int:
    return len(text) - sum(map(text.count, markup))


def _find_delimiter(text: str) -> str:
    """Return the delimiter that gives the header a column `text`, else the one that gives it the most columns."""
    columns: dict[str, float] = {}  # by delimiter
    for delimiter in _DELIMITERS:
        with suppress(csv.Error):
            header = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), [])
            columns[delimiter] = math.inf if "text" in header else len(header)
    return max(columns, key=columns.__getitem__, default=",")


def iter_json_lines(file: str) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield (line number from 1, row, encoding) of every non-blank line; .gz and .zst are decompressed."""
    for number, (text, encoding) in enumerate(read_lines(file), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text, object_pairs_hook=_unique)
            if "\\u" in text:
                json.dumps(row, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:  # a lone surrogate, which UTF-8 cannot encode
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise ValueError(
                f"{file}, line {number}, spells half a character ({half}): write the whole of it, or remove it"
            ) from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}, line {number}, is not JSON ({error}): fix or remove it") from error
        if not isinstance(row, dict):
            raise ValueError(f"{file}, line {number}, holds no JSON object: each line must be one")
        yield number, row, encoding


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raise a ValueError on a duplicate key, of which `json` would silently keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice in one object")
    return found


def iter_parquet_rows(file: str) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield (row number from 0, row, encoding), reading batches of 256 rows.

    Raise a ValueError if two columns have the same name, since a row would silently keep the last.
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
            raise ValueError(f"{file} is no parquet file, or is damaged ({error}): fix or remove it") from error


def find_damage(path: str) -> str | None:
    """Return a message naming the file of a local copy that cannot be read and why, which `datasets` does not."""
    files = list_files(path) if os.path.isdir(path) else [path]
    try:
        for file in files:
            suffix = unpacked_suffix(file)
            if suffix == ".parquet":
                deque(iter_parquet_rows(file), maxlen=0)
            elif suffix in (".jsonl", ".json", ".txt", ".csv"):
                _, encoding = decode_text(read_bytes(file))
                if encoding != "utf-8":
                    return f"{file} is not UTF-8 but {encoding}: save it as UTF-8"
            if suffix == ".jsonl" and not sum(1 for _ in iter_json_lines(file)):
                return f"{file} holds no row: fill it or remove it"
            if suffix == ".json":
                json.loads(read_bytes(file))
    except ValueError as error:
        return str(error)
    return None
