"""The registry of source kinds: each is a module of this package with a line `KIND = "roam"`, and registered by it.

Such a module has
- `Settings`, a frozen dataclass: the kind's parameters, and in `splits` the rules by which its rows may be held out;
- `documents(settings, request)`, which yields a `Document` each, or `chats(settings, request)`, which yields a `Chat`;
- where a source of the kind may be too large for one process, `slices(settings, request, text_bytes)`: requests for
  some of its files each, of about so much text, that together, in order, ask for the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from niels_gpt.data.types import Request

_REGISTERED = re.compile(r'^KIND = "(\w+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Kind:
    name: str
    settings: type[Any]
    read: Callable[[Any, Request], Iterator[Any]]
    holds_chats: bool
    slices: Callable[[Any, Request, int], list[Request]] | None


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
        kinds[name] = Kind(name, module.Settings, read, holds_chats, getattr(module, "slices", None))
    return kinds
