"""The registry of source kinds: each is a module of this package with a line `KIND = "roam"`, and registered by it.

Such a module has
- `Settings`, a frozen dataclass: the kind's parameters, and in `splits` the rules by which its rows may be held out;
- `documents(settings, request)`, which yields a `Document` each, or `chats(settings, request)`, which yields a `Chat`;
- where a source of the kind may be too large for one process, `slices(settings, request, text_bytes)`: requests for
  some of its files each, of about so much text, that together, in order, ask for the same;
- where it reads some files of a folder and leaves others out, `takes(settings)`: which it reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from niels_gpt.data.left_out import Taken, left_out, told
from niels_gpt.data.types import Request

_REGISTERED = re.compile(r'^KIND = "(\w+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Kind:
    name: str
    settings: type[Any]
    read: Callable[[Any, Request], Iterator[Any]]
    holds_chats: bool
    slices: Callable[[Any, Request, int], list[Request]] | None
    takes: Callable[[Any], Taken] | None


def kind_files(folder: Path) -> dict[str, Path]:
    """{kind: its file} of the modules in a folder. Found as text: importing the others would load pyarrow (0.3 s)."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        for name in _REGISTERED.findall(path.read_text(encoding="utf-8")):
            found[name] = path
    return found


@cache
def source_kinds() -> dict[str, Kind]:
    """{kind: what its module has}, of all kinds there are."""
    kinds = {}
    for name, path in kind_files(Path(__file__).parent).items():
        module: Any = import_module(f"{__package__}.{path.stem}")
        holds_chats = hasattr(module, "chats")
        read = module.chats if holds_chats else module.documents
        optional = (getattr(module, function, None) for function in ("slices", "takes"))
        kinds[name] = Kind(name, module.Settings, read, holds_chats, *optional)
    return kinds


def say_left_out(name: str, settings: Any, path: str) -> list[str]:
    """What a source of that kind does not read of its folder, and which other kinds do; nothing where all is read."""
    kind = source_kinds()[name]
    if kind.takes is None:
        return []
    taken = kind.takes(settings)

    def others(suffix: str) -> list[str]:
        able = (other for other in source_kinds().values() if other.takes and other.holds_chats == kind.holds_chats)
        return [other.name for other in able if other.takes and other.takes(other.settings()).is_read(f"x{suffix}")]

    return list(told(left_out(path, taken), kind=name, taken=taken, others=others))
