"""Registry of source kinds (the modules that can load a source), and reports of files that a kind skips.

The module of a kind defines `KIND`, its name, and
- `Settings`, a frozen dataclass of the kind's parameters; `splits` lists the ways its rows can be split;
- `documents(settings, request)`, which yields `Document`s, or `chats(settings, request)`, which yields `Chat`s;
- optionally, for parallel loading, `slices(settings, request, text_bytes)`: requests for some files each, of about
  `text_bytes` bytes of text, that are together, in order, equivalent to `request`; [] if it cannot be divided;
- optionally, if it reads only some files of a folder, `takes(settings)`: a `Taken` that says which.
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

# Skipped files are reported by suffix, so that none goes unnoticed. The report is only printed: it is not part of the
# loaded data and changes no hash.

_NAMED = 3  # files named per group; the rest are counted
_MAY_BE_BLANK = 64  # bytes; larger files are not opened to see whether they are blank


@dataclass(frozen=True)
class Taken:
    """Selection of the files in a folder that a kind reads: by suffix and by `glob`.

    With `packed`, .gz and .zst files are read, too. Files that `glob` excludes are not reported as skipped.
    """

    suffixes: tuple[str, ...]
    packed: bool = False
    glob: str | None = None

    def is_asked_for(self, name: str) -> bool:
        """Return whether `glob` selects the file with this path relative to the folder."""
        return self.glob is None or PurePosixPath(name).match(self.glob)

    def is_read(self, name: str) -> bool:
        """Return whether the kind reads files with this suffix."""
        return (unpacked_suffix(name) if self.packed else os.path.splitext(name)[1]) in self.suffixes


@dataclass(frozen=True)
class LeftOut:
    """Group of skipped files: with the same suffix, without a suffix, or empty."""

    sort: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        shown, more = map(visible, self.names[:_NAMED]), len(self.names) - _NAMED
        return f"{len(self.names):,} {self.sort} ({', '.join(shown)}{f' and {more:,} more' if more > 0 else ''})"


def left_out(folder: str, taken: Taken) -> list[LeftOut]:
    """Return the skipped files of a folder in groups, the largest first; hidden files are not counted."""
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
    """Yield messages for the user: the skipped files, and the kinds that could read them.

    `others` returns the names of the other kinds that read a suffix.
    """
    if not sorts:
        return
    count = sum(len(one.names) for one in sorts)
    files = "1 file is" if count == 1 else f"{count:,} files are"
    yield f"{files} skipped, since kind {kind} reads {', '.join(taken.suffixes)}: {'; '.join(map(str, sorts))}"
    able = {one.sort: " or ".join(kinds) for one in sorts if (kinds := others(one.sort))}
    for named in dict.fromkeys(able.values()):
        read = ", ".join(sort for sort in able if able[sort] == named)
        yield f"{read}: a source of kind {named} with the same input reads them"


def _sort(path: str, name: str, taken: Taken) -> str | None:
    """Return the group of a skipped file (its suffix, or "empty"); None if the file is read."""
    if taken.is_read(name):
        return "empty" if _is_blank(Path(path)) else None
    suffix = os.path.splitext(name)[1]
    inner = unpacked_suffix(name)
    return inner + suffix if inner != suffix else suffix or "without a suffix"


def _is_blank(file: Path) -> bool:
    """Return whether a small file is only whitespace; False for non-files (a FIFO), which the reader reports."""
    return file.is_file() and file.stat().st_size <= _MAY_BE_BLANK and not file.read_bytes().strip()


_REGISTERED = re.compile(r'^KIND = "(\w+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Kind:
    """Source kind: its name, its settings class and the functions of its module."""

    name: str
    settings: type[Any]
    read: Callable[[Any, Request], Iterator[Any]]
    holds_chats: bool
    slices: Callable[[Any, Request, int], list[Request]] | None
    takes: Callable[[Any], Taken] | None


def kind_files(folder: Path) -> dict[str, Path]:
    """Return {kind: file} of the modules in a folder, found by regex: importing them would load pyarrow (0.3 s)."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        for name in _REGISTERED.findall(path.read_text(encoding="utf-8")):
            found[name] = path
    return found


@cache
def source_kinds() -> dict[str, Kind]:
    """Return all source kinds by name; imports their modules."""
    kinds = {}
    for name, path in kind_files(Path(__file__).parent).items():
        module: Any = import_module(f"{__package__}.{path.stem}")
        holds_chats = hasattr(module, "chats")
        read = module.chats if holds_chats else module.documents
        optional = (getattr(module, function, None) for function in ("slices", "takes"))
        kinds[name] = Kind(name, module.Settings, read, holds_chats, *optional)
    return kinds


def say_left_out(name: str, settings: Any, path: str) -> list[str]:
    """Return messages naming the files below `path` that kind `name` skips and the kinds that read them, if any."""
    kind = source_kinds()[name]
    if kind.takes is None:
        return []
    taken = kind.takes(settings)

    def others(suffix: str) -> list[str]:
        able = (other for other in source_kinds().values() if other.takes and other.holds_chats == kind.holds_chats)
        return [other.name for other in able if other.takes and other.takes(other.settings()).is_read(f"x{suffix}")]

    return list(told(left_out(path, taken), kind=name, taken=taken, others=others))
