"""The list of all parameters, as markdown: what each may be, what the sample has, and what it does."""

from __future__ import annotations

import json
import math
from dataclasses import astuple
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from niels_gpt.config import INT64
from niels_gpt.pipeline.mistakes import members

_HEAD = """# Parameters

Every key of params.yaml, as `python -m niels_gpt.pipeline.params` prints it. `NAME` stands for a name of your own,
`sample` for the value in presets/sample.yaml, or, of a key that may be left out and is so there, for what it then is.
What is not allowed is refused, by name, before anything runs; `niels-gpt check` tells all of it at once.
"""
_KINDS = {int: "integer", float: "number", bool: "true or false", str: "text", list: "list", NoneType: "null"}
_BOUNDS = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<", MinLen: "of length >="}
_UNSAID = (INT64, Lt(math.inf))  # limits that nobody comes near
_COLUMNS = "| parameter | allowed | sample | what it does |\n|---|---|---|---|\n"


def list_parameters(shape: type[BaseModel], sample: dict[str, Any]) -> str:
    """A table for every section, and one for every kind of a section that comes in several."""
    tables: dict[str, list[str]] = {}
    for name, field in shape.__pydantic_fields__.items():
        tables[f"## {name}"] = []
        _collect((name,), field, sample.get(name), title=f"## {name}", tables=tables)
    return "\n".join([_HEAD, *(_table(title, rows) for title, rows in tables.items())])


def _table(title: str, rows: list[str]) -> str:
    if rows:
        return f"{title}\n\n{_COLUMNS}{''.join(rows)}"
    return f"{title}\n" if title.startswith("## ") else f"{title}\n\nNothing else.\n"


def _collect(
    path: tuple[str, ...],
    field: FieldInfo,
    value: Any,
    *,
    title: str,
    tables: dict[str, list[str]],
    above: dict[str, FieldInfo] | None = None,
) -> None:
    """Add a row for every parameter at or below a path to the table that it belongs to; `...` is no value. `above`: the
    sections that it is in."""
    chain = {**(above or {}), path[-1]: field}
    kinds = members(field.annotation)
    if get_origin(kinds[0]) is dict:
        path, value, kinds = (*path, "NAME"), ..., members(get_args(kinds[0])[1])
    if not hasattr(kinds[0], "__pydantic_fields__"):
        tables[title].append(_row(path, field, value, said=_said(chain)))
        return
    tag = str(field.discriminator) if field.discriminator else ""
    for kind in kinds:
        keys, values = kind.__pydantic_fields__, value if isinstance(value, dict) else {}
        if tag:
            words = get_args(keys[tag].annotation)
            title = f"### {'.'.join(path)} of {tag} {' or '.join(words)}"
            values = values if values.get(tag) in words else {}
            tables[title] = []
        for key in keys:
            if key != tag:
                _collect((*path, key), keys[key], values.get(key, ...), title=title, tables=tables, above=chain)


def _said(chain: dict[str, FieldInfo]) -> str:
    """The lines of help, the outermost section's first, and what of them one may do without."""
    notes = [note for field in chain.values() for note in field.metadata if isinstance(note, str)]
    optional = [key for key, field in chain.items() if not field.is_required()]
    return ": ".join(notes) + (f" ({optional[0]} may be left out)" if optional else "")


def _row(path: tuple[str, ...], field: FieldInfo, value: Any, *, said: str) -> str:
    kind = get_args(field.annotation)[1] if path[-1] == "NAME" else field.annotation
    allowed = allowed_values(Annotated[(kind, *field.metadata)] if field.metadata else kind)
    sample = "" if value is ... else f"`{json.dumps(value, ensure_ascii=False)}`"
    return f"| `{'.'.join(path)}` | {allowed} | {sample} | {said} |\n"


def allowed_values(annotation: Any) -> str:
    """Describe what an annotation allows: "integer >= 1, or null"."""
    kind, *notes = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if get_origin(kind) is Literal:
        choices = [str(choice).lower() if isinstance(choice, bool) else choice for choice in get_args(kind)]
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if len(members(kind)) > 1:
        return ", or ".join(map(allowed_values, get_args(kind)))
    bounds = [
        f"{_BOUNDS[type(note)]} {astuple(note)[0]}" for note in notes if type(note) in _BOUNDS and note not in _UNSAID
    ]
    return f"{_KINDS.get(get_origin(kind) or kind, 'table')} {' and '.join(bounds)}".strip()
