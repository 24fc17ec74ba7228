"""Print docs/parameters.md: every key of params.yaml with its allowed values, default, and value in the sample.

Run: python -m scripts.parameters > docs/parameters.md        (a test compares the page with its output)
"""

import json
import math
from dataclasses import astuple
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from niels_gpt.config import INT64
from niels_gpt.pipeline.params import Params, read_params
from niels_gpt.pipeline.yaml_files import default_of, keys_of, members

_HEAD = """# Parameters

Every key of params.yaml, as `python -m scripts.parameters` prints it. `NAME` stands for a name of your own,
`sample` for its value in params.yaml as published. A key with a default may be left out; where it says `seed`, the
default is the seed at the top. `niels-gpt params` prints all values of your params.yaml, with the defaults.
What is not allowed is refused, by name, before anything runs; `niels-gpt doctor --params` lists the errors.
"""
_KINDS = {int: "integer", float: "number", bool: "true or false", str: "text", list: "list", NoneType: "null"}
_BOUNDS = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<", MinLen: "of length >="}
_UNSAID = (INT64, Lt(math.inf))  # limits too large to mention
_COLUMNS = "| parameter | allowed | default | sample | what it does |\n|---|---|---|---|---|\n"


def list_parameters(shape: type[BaseModel], sample: dict[str, Any]) -> str:
    """Return docs/parameters.md: a table per section, or per kind if a section comes in several."""
    tables: dict[str, list[str]] = {}
    for name, field in keys_of(shape).items():
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
    default: Any = ...,
    *,
    title: str,
    tables: dict[str, list[str]],
    above: dict[str, FieldInfo] | None = None,
) -> None:
    """Add a row for each parameter at or below a path to the table it belongs to.

    A `value` or `default` of `...` means that there is none; `above` has the enclosing sections.
    """
    chain = {**(above or {}), path[-1]: field}
    default = default_of(field) if default is ... else default
    kinds = members(field.annotation)
    if get_origin(kinds[0]) is dict:
        path, value, default, kinds = (*path, "NAME"), ..., ..., members(get_args(kinds[0])[1])
    if not keys_of(kinds[0]):
        tables[title].append(_row(path, field, value, default, said=_said(chain)))
        return
    tag = str(field.discriminator) if field.discriminator else ""
    for kind in kinds:
        keys = keys_of(kind)
        values, defaults = (part if isinstance(part, dict) else {} for part in (value, default))
        if tag:
            words = get_args(keys[tag].annotation)
            title = f"### {'.'.join(path)} of {tag} {' or '.join(words)}"
            values = values if values.get(tag) in words else {}
            tables[title] = []
        for key in keys:
            if key != tag:
                own = values.get(key, ...), defaults.get(key, ...)
                _collect((*path, key), keys[key], *own, title=title, tables=tables, above=chain)


def _said(chain: dict[str, FieldInfo]) -> str:
    """Return the help texts of all enclosing sections, outermost first."""
    return ": ".join(note for field in chain.values() for note in field.metadata if isinstance(note, str))


def _row(path: tuple[str, ...], field: FieldInfo, value: Any, default: Any, *, said: str) -> str:
    kind = get_args(field.annotation)[1] if path[-1] == "NAME" else field.annotation
    allowed = allowed_values(Annotated[(kind, *field.metadata)] if field.metadata else kind)
    shown = ["" if one is ... else f"`{json.dumps(one, ensure_ascii=False)}`" for one in (default, value)]
    if path[-1] == "seed" and path[1:] and "load" not in path:
        shown[0] = "seed"
    return f"| `{'.'.join(path)}` | {allowed} | {' | '.join(shown)} | {said} |\n"


def allowed_values(annotation: Any) -> str:
    """Return a description of what an annotation allows: "integer >= 1, or null"."""
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


if __name__ == "__main__":
    print(list_parameters(Params, read_params()[0].model_dump()), end="")
