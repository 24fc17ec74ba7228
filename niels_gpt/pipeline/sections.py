"""Sections of params.yaml, derived from the library's own dataclasses.

A parameter is a field of one frozen dataclass of the library: its type, its range (`annotated_types`) and a line of
help, all in `Annotated`. Here that becomes a section of params.yaml, which is strict where a constructor is lenient:
no unknown key, no value of another type, and no key left out unless the dataclass's defaults are asked for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def section(
    of: type, *, without: Collection[str] = (), with_defaults: bool = False, base: type[Section] = Section
) -> type[Section]:
    """The fields of a dataclass as a section, but for those that are not written in params.yaml."""
    hints = get_type_hints(of, include_extras=True)
    keys: dict[str, Any] = {}
    for field in fields(of):
        if field.name not in without:
            optional = with_defaults and field.default is not MISSING
            keys[field.name] = (hints[field.name], field.default if optional else ...)
    return create_model(of.__name__, __base__=base, __doc__=of.__doc__, **keys)
