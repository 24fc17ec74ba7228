"""The registry of source kinds, and the files of a source's folder that are not read.

Such a module has
- `Settings`, a frozen dataclass: the kind's parameters, and in `splits` the rules by which its rows may be held out;
- `documents(settings, request)`, which yields a `Document` each, or `chats(settings, request)`, which yields a `Chat`;
- where a source of the kind may be too large for one process, `slices(settings, request, text_bytes)`: requests for
  some of its files each, of about so much text, that together, in order, ask for the same;
- where it reads some files of a folder and leaves others out, `takes(settings)`: which it reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from niels_gpt.data.readers.files import list_files, unpacked_suffix
from niels_gpt.data.types import Request
from niels_gpt.files.messages import visible

# Files of a source's folder that are not read: counted and named by what they are, so that none is missed in silence.
#
# Nothing of this is part of what is loaded: it is said, and changes no hash.

_NAMED = 3  # of each sort; the rest is counted
_MAY_BE_BLANK = 64  # bytes; a larger file of nothing but spaces is nobody's


@dataclass(frozen=True)
class Taken:
    """Which files of a folder a kind reads: by suffix, packed ones too, and of those like `glob` alone. What `glob`
    does not choose was left out by its owner."""

    suffixes: tuple[str, ...]
    packed: bool = False
    glob: str | None = None

    def is_asked_for(self, name: str) -> bool:
        return self.glob is None or PurePosixPath(name).match(self.glob)

    def is_read(self, name: str) -> bool:
        return (unpacked_suffix(name) if self.packed else os.path.splitext(name)[1]) in self.suffixes


@dataclass(frozen=True)
class LeftOut:
    """Files of one sort: of a suffix, without one, or empty."""

    sort: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        shown, more = map(visible, self.names[:_NAMED]), len(self.names) - _NAMED
        return f"{len(self.names):,} {self.sort} ({', '.join(shown)}{f' and {more:,} more' if more > 0 else ''})"


def left_out(folder: str, taken: Taken) -> list[LeftOut]:
    """What of a folder is not read, the sort with most files first. Hidden files are nobody's text and not counted."""
    if not os.path.isdir(folder):
        return []
    found: dict[str, list[str]] = {}
    root = os.path.abspath(folder)
    for path in list_files(root):
        name = Path(path).relative_to(root).as_posix()
        if taken.is_asked_for(name) and (sort := _sort(path, name, taken)):
            found.setdefault(sort, []).append(name)
    sorts = [LeftOut(sort, tuple(names)) for sort, names in found.items()]
    return sorted(sorts, key=lambda one: (-len(one.names), one.sort))


def told(sorts: Sequence[LeftOut], *, kind: str, taken: Taken, others: Callable[[str], list[str]]) -> Iterator[str]:
    """Sentences: what is left out, and for what could be read otherwise, how. `others`: kinds that read a suffix."""
    if not sorts:
        return
    count = sum(len(one.names) for one in sorts)
    files = "1 file is" if count == 1 else f"{count:,} files are"
    yield f"{files} left out, since kind {kind} reads {', '.join(taken.suffixes)}: {'; '.join(map(str, sorts))}"
    able = {one.sort: " or ".join(kinds) for one in sorts if (kinds := others(one.sort))}
    for named in dict.fromkeys(able.values()):
        read = ", ".join(sort for sort in able if able[sort] == named)
        yield f"{read}: a source of kind {named} with the same input reads them"


def _sort(path: str, name: str, taken: Taken) -> str | None:
    """What a file is called by, if it is not read."""
    if taken.is_read(name):
        return "empty" if _is_blank(Path(path)) else None
    suffix = os.path.splitext(name)[1]
    inner = unpacked_suffix(name)
    return inner + suffix if inner != suffix else suffix or "without a suffix"


def _is_blank(file: Path) -> bool:
    """Of what is no file (a FIFO) the reader says what is wrong with it."""
    return file.is_file() and file.stat().st_size <= _MAY_BE_BLANK and not file.read_bytes().strip()


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
