"""Tables with a JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from niels_gpt.data.files import opened


def iter_json_lines(file: str) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """(line number from 1, row, whether it was UTF-8) of every line that is not blank; .gz and .zst are unpacked."""
    with opened(file) as lines:
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
