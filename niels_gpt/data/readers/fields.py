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
