"""Tables in CSV files, as spreadsheets and databases of any country write them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from niels_gpt.data.readers.files import decode_text, read_bytes

_DELIMITERS = ",;\t|"
_EXCEL_LINE = re.compile(r'\A"?sep=(.)"?(?:\r\n|\r|\n)', re.IGNORECASE)  # Excel's own first line


def iter_csv_texts(file: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield (row number, text, its column, encoding) of every row; the header is row 1.

    The text is the column `text`, or the only column. Raise a ValueError that names the row if a quote does not close,
    or if cells have no column; and one that names the file if the cells do not hold every character of it.
    """
    text, encoding = decode_text(read_bytes(file))
    csv.field_size_limit(2**31 - 1)
    excel = _EXCEL_LINE.match(text)
    text = text[excel.end() :] if excel else text
    above = 1 if excel else 0  # lines above the header
    delimiter = excel[1] if excel else _find_delimiter(text)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    markup = (delimiter, '"', "\r", "\n")
    number, first_line, left = 1 + above, 1 + above, _length(text, markup)
    try:
        columns = next(rows, [])
        left -= _length("".join(columns), markup)
        if ("text" not in columns and len(columns) != 1) or columns.count("text") > 1:
            fault = "more than one" if "text" in columns else "none"
            raise ValueError(f"{file} has the columns {columns}, {fault} of them called text: name the one to read so")
        place = columns.index("text") if "text" in columns else 0
        number, first_line = number + 1, rows.line_num + above + 1
        for row in rows:
            where = f"{file}, row {number} (line {first_line}),"
            if row and len(row) <= place:
                raise ValueError(f"{where} has no column {place + 1}, the text: mend it or remove it")
            if any(row[len(columns) :]):
                raise ValueError(
                    f"{where} has {len(row)} cells in {len(columns)} columns: put quotes around a cell that holds "
                    f"{delimiter!r}"
                )
            if row:
                yield number, row[place], columns[place], encoding
            left -= _length("".join(row), markup)
            number, first_line = number + 1, rows.line_num + above + 1
    except csv.Error as error:
        reason = "a quote is opened and never closed" if "end of data" in str(error) else str(error)
        where = f"{file}, row {number} (lines {first_line} to {rows.line_num + above}),"
        raise ValueError(f"{where} is no CSV ({reason}): mend it or remove it") from error
    if left:
        raise ValueError(
            f"{file}: {left:,} of {_length(text, markup):,} characters are in no cell: mend it or remove it"
        )


def _find_delimiter(text: str) -> str:
    """Return the delimiter under which the header has a column `text`, else the one that makes most columns."""
    headers: dict[str, list[str]] = {}
    for delimiter in _DELIMITERS:
        try:
            headers[delimiter] = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), [])
        except csv.Error:
            headers[delimiter] = []
    by_name = (delimiter for delimiter, columns in headers.items() if "text" in columns)
    return next(by_name, max(headers, key=lambda delimiter: len(headers[delimiter])))


def _length(text: str, markup: tuple[str, ...]) -> int:
    return len(text) - sum(map(text.count, markup))
