"""Checks of a hub dataset's copy in a folder, which the hub's library reads without naming the file that is damaged.

Its JSON reader ends the process at some 100,000 nested brackets, so JSON is checked beforehand. Other damage it notices
itself, and only then is every file read once more, to find out which one it is.
"""

from __future__ import annotations

import json
import os

from niels_gpt.data.readers.files import decode_text, file_faults, list_files, read_bytes, unpacked_suffix
from niels_gpt.data.readers.json_lines import iter_json_lines, parse_json
from niels_gpt.data.readers.parquet_rows import iter_parquet_rows


def check_json(path: str) -> None:
    """A ValueError that names the file, and the line, if JSON in the copy cannot be read."""
    for file in list_files(path) if os.path.isdir(path) else [path]:
        for fault in file_faults(file):
            raise ValueError(fault)
    for file in _files(path, ".jsonl"):
        number = 0
        for number, _, encoding in iter_json_lines(file):
            if encoding != "utf-8":
                raise ValueError(f"{file}, line {number}, is not UTF-8 but {encoding}: save it as UTF-8")
        if not number:
            raise ValueError(f"{file} holds no row: fill it or remove it")
    for file in _files(path, ".json"):
        text = _utf8(file)
        try:
            parse_json(text)
        except json.JSONDecodeError:
            for _ in iter_json_lines(file):  # such a file may hold an object a line
                pass
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} is not JSON ({error}): mend it or remove it") from error


def find_damage(path: str) -> str | None:
    """Which file of the copy cannot be read, and why; None where all can."""
    try:
        for file in _files(path, ".parquet"):
            for _ in iter_parquet_rows(file):
                pass
        for file in (*_files(path, ".txt"), *_files(path, ".csv")):
            _utf8(file)
    except ValueError as error:
        return str(error)
    return None


def _files(path: str, suffix: str) -> list[str]:
    files = list_files(path, {suffix, ".gz", ".zst"}) if os.path.isdir(path) else [path]
    return [file for file in files if unpacked_suffix(file) == suffix]


def _utf8(file: str) -> str:
    text, encoding = decode_text(read_bytes(file))
    if encoding != "utf-8":
        raise ValueError(f"{file} is not UTF-8 but {encoding}: save it as UTF-8")
    return text
