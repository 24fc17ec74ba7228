"""Sections of params.yaml, derived from the library's own dataclasses.

A parameter is a field of one frozen dataclass of the library: its type, its range (`annotated_types`) and a line of
help, all in `Annotated`. A section of params.yaml has the same fields, and no default but those asked for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from niels_gpt.config import STRICT


class Section(BaseModel):
    model_config = ConfigDict(**STRICT, frozen=True)


def section(
    of: type,
    *,
    without: Collection[str] = (),
    optional: Collection[str] = (),
    with_defaults: bool = False,
    base: type[Section] = Section,
) -> type[Section]:
    """Return the fields of a dataclass as a section, except those that are not written in params.yaml.

    `optional`: keys that may be left out, options added later whose default changes nothing. `with_defaults`: all keys
    that have a default are optional.
    """
    hints = get_type_hints(of, include_extras=True)
    keys: dict[str, Any] = {}
    for field in fields(of):
        if field.name not in without:
            default = field.default if with_defaults or field.name in optional else MISSING
            keys[field.name] = hints[field.name], ... if default is MISSING else default
    return create_model(of.__name__, __base__=base, __doc__=of.__doc__, **keys)
