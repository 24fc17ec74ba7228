"""Which field of a row is its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def select_text_field(sample: Mapping[str, Any]) -> str:
    """The field "text" where it is a string, else the first string field; a row without one is refused by its keys."""
    text = sample.get("text")
    if isinstance(text, str):
        return text
    for value in sample.values():
        if isinstance(value, str):
            return value
    raise ValueError(f"no field of this row is text; its keys are {sorted(map(str, sample))}")


class TextColumn:
    """Chooses the field of each row of one file that is its text: `text`, or the first text field of the first row.

    A row whose field is null has no text. It never falls to another field: that would train on titles and names.
    """

    def __init__(self) -> None:
        self._known = ["text"]
        self._rows = 0

    def read(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """Return (text, its field), the text of a null as ""; raise a ValueError if the row lacks the field."""
        self._rows += 1
        name = next((name for name in self._known if name in row), None)
        if name is None:
            name = self._first_text(row)
            self._known.append(name)
        value = row[name]
        if value is not None and not isinstance(value, str):
            raise ValueError(f"its field {name!r} is no text but {type(value).__name__}: mend it or remove it")
        return value or "", name

    def _first_text(self, row: Mapping[str, Any]) -> str:
        keys = f"its keys are {sorted(map(str, row))}"
        if self._rows > 1:
            raise ValueError(f"it has no field {' or '.join(map(repr, self._known))}, as rows before it; {keys}")
        for name, value in row.items():
            if value is None:
                raise ValueError(f"its field {name!r} is null and may be the text: call the field to read text; {keys}")
            if isinstance(value, str):
                return name
        raise ValueError(f"no field of this row is text; {keys}")


def check_texts(sample: Mapping[str, Any], names: Sequence[str], *, place: str) -> None:
    """A ValueError that names the place if one of these fields is missing, or is no text."""
    missing = [name for name in names if not isinstance(sample.get(name), str)]
    if missing:
        raise ValueError(f"{place} has no text in {', '.join(missing)}; its keys are {sorted(map(str, sample))}")


def small_fields(sample: Mapping[str, Any], *, text: str) -> dict[str, Any]:
    """The row's other numbers and short strings (id, url, score), for a sample's meta."""
    return {
        key: value
        for key, value in sample.items()
        if value is not text and (type(value) in (int, float) or (type(value) is str and len(value) <= 500))
    }
