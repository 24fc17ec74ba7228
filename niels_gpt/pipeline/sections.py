"""Sections of params.yaml, derived from the library's own dataclasses.

A parameter is a field of one frozen dataclass of the library: its type, its range (`annotated_types`) and a line of
help, all in `Annotated`. Here that becomes a section of params.yaml, which is strict where a constructor is lenient:
no unknown key, no value of another type, and no key left out but those for which the dataclass's defaults are asked.
A dataclass in a dataclass becomes a section in the section: it may be left out whole, but not in part.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def section(
    of: type,
    *,
    without: Collection[str] = (),
    optional: Collection[str] = (),
    with_defaults: bool = False,
    base: type[Section] = Section,
) -> type[Section]:
    """The fields of a dataclass as a section, but for those that are not written in params.yaml.

    `optional`: keys that may be left out. They are options whose default is how it was before there were any, so that a
    params.yaml of then still runs, and to the same numbers. `with_defaults`: all that have a default are optional.
    """
    hints = get_type_hints(of, include_extras=True)
    keys: dict[str, Any] = {}
    for field in fields(of):
        if field.name not in without:
            default = field.default if with_defaults or field.name in optional else MISSING
            keys[field.name] = _nested(hints[field.name], ... if default is MISSING else default)
    return create_model(of.__name__, __base__=base, __doc__=of.__doc__, **keys)


def _nested(hint: Any, default: Any) -> tuple[Any, Any]:
    """A field's type and default; a section, where it is a dataclass."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not is_dataclass(kind):
        return hint, default
    inner = section(kind)  # type: ignore[arg-type]
    return Annotated[(inner, *notes)] if notes else inner, default if default is ... else inner(**asdict(default))
