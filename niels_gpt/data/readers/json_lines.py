"""Tables with a JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from niels_gpt.data.readers.files import decode_text, encoding_of_mark, read_bytes, read_lines


def iter_json_lines(file: str) -> Iterator[tuple[int, dict[str, Any], str]]:
    """(line number from 1, row, encoding) of every line that is not blank; .gz and .zst are unpacked."""
    for number, (text, encoding) in enumerate(_lines(file), start=1):
        if not text.strip():
            continue
        try:
            row = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}, line {number}, is not JSON ({error}): mend it or remove it") from error
        if not isinstance(row, dict):
            raise ValueError(f"{file}, line {number}, holds no JSON object: each line must be one")
        if "\\u" in text:
            _check_whole(row, f"{file}, line {number}")
        yield number, row, encoding


def parse_json(text: str) -> Any:
    """Parse JSON; raise a ValueError if an object has a key twice, of which the parser would keep the last."""
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice in one object")
    return found


def _lines(file: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(file)):
        if number == 0 and (encoding_of_mark(line) or (b"", "utf-8"))[1] != "utf-8":
            # UTF-16 and UTF-32 have no byte that ends a line and does nothing else.
            text, encoding = decode_text(read_bytes(file))
            yield from ((part, encoding) for part in text.split("\n"))
            return
        yield decode_text(line)


def _check_whole(row: dict[str, Any], place: str) -> None:
    """JSON can spell half a character (\\ud800), which no file of text can hold."""
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise ValueError(f"{place}, spells half a character ({half}): write the whole of it, or remove it") from error
