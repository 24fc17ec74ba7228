"""Registry of source kinds (the modules that can load a source), and reports of files that a kind skips.

The module of a kind defines `KIND`, its name, and
- `Settings`, a frozen dataclass of the kind's parameters; `splits` lists the ways its rows can be split;
- `documents(settings, request)`, which yields `Document`s, or `chats(settings, request)`, which yields `Chat`s;
- optionally, if it reads only some files of a folder, their `SUFFIXES`, and `PACKED = False` if not also .gz and .zst;
- optionally, for parallel loading, `slices(settings, request, text_bytes)`: requests for some files each, of about
  `text_bytes` bytes of text, that are together, in order, equivalent to `request`; [] if it cannot be divided. Kinds
  of documents with `SUFFIXES` need none.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from niels_gpt.data.readers.files import files_in, unpacked_suffix
from niels_gpt.data.types import Request, grouped
from niels_gpt.files.messages import plural, visible

# Skipped files are reported by suffix, so that none goes unnoticed. The report is only printed: it is not part of the
# loaded data and changes no hash.

_NAMED = 3  # files named per group; the rest are counted
_MAY_BE_BLANK = 64  # bytes; larger files are not opened to see whether they are blank


def left_out(folder: str, reads: Callable[[str], bool], *, glob: str | None = None) -> dict[str, list[str]]:
    """Return {suffix: names} of the skipped files of a folder, the largest group first.

    Files without a suffix and empty files are groups of their own. Hidden files, and those that `glob` excludes, are
    not counted. `reads` says whether a file of this name is read.
    """
    found: dict[str, list[str]] = {}
    for path, name in files_in(folder, glob) if os.path.isdir(folder) else ():
        if not reads(name):
            suffix, inner = os.path.splitext(name)[1], unpacked_suffix(name)
            sort = inner + suffix if inner != suffix else suffix or "without a suffix"
            found.setdefault(sort, []).append(name)
        elif os.path.isfile(path) and os.path.getsize(path) <= _MAY_BE_BLANK and not Path(path).read_bytes().strip():
            found.setdefault("empty", []).append(name)
    return dict(sorted(found.items(), key=lambda group: (-len(group[1]), group[0])))


_REGISTERED = re.compile(r'^KIND = "(\w+)"$', re.MULTILINE)


class Kind:
    """Source kind: its name, and what its module defines."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.holds_chats = name, hasattr(module, "chats")
        self.settings: type[Any] = module.Settings
        self.read: Callable[[Any, Request], Iterator[Any]] = module.chats if self.holds_chats else module.documents
        self.slices: Callable[[Any, Request, int], list[Request]] | None = getattr(module, "slices", None)
        self.suffixes: tuple[str, ...] = getattr(module, "SUFFIXES", ())
        self.packed: bool = getattr(module, "PACKED", True)

    def reads(self, name: str) -> bool:
        return (unpacked_suffix(name) if self.packed else os.path.splitext(name)[1]) in self.suffixes

    def requests(self, settings: Any, request: Request, text_bytes: int) -> list[Request]:
        """Divide a request, by `slices` or into groups of consecutive files of about `text_bytes` bytes on disk."""
        if self.slices is not None:
            return self.slices(settings, request, text_bytes) or [request]
        divided = self.suffixes and not self.holds_chats and os.path.isdir(request.path)
        files = files_in(request.path, getattr(settings, "glob", None)) if divided else ()
        read = (file for file in files if self.reads(file[1]))
        groups = grouped(read, lambda file: os.path.getsize(file[0]), most=text_bytes)
        return [replace(request, files=tuple(name for _, name in group)) for group, _ in groups] or [request]


def kind_files(folder: Path) -> dict[str, Path]:
    """Return {kind: file} of the modules in a folder, found by regex: importing them would load pyarrow (0.3 s)."""
    paths = sorted(folder.glob("*.py"))
    return {name: path for path in paths for name in _REGISTERED.findall(path.read_text(encoding="utf-8"))}


@cache
def source_kinds() -> dict[str, Kind]:
    """Return all source kinds by name; imports their modules."""
    files = kind_files(Path(__file__).parent)
    return {name: Kind(name, import_module(f"{__package__}.{path.stem}")) for name, path in files.items()}


def say_left_out(name: str, settings: Any, path: str) -> list[str]:
    """Return messages naming the files below `path` that kind `name` skips and the kinds that read them, if any."""
    kind = source_kinds()[name]
    skipped = left_out(path, kind.reads, glob=getattr(settings, "glob", None)) if kind.suffixes else {}
    if not skipped:
        return []
    groups = []
    for sort, names in skipped.items():
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        groups.append(f"{len(names):,} {sort} ({', '.join(map(visible, names[:_NAMED]))}{more})")
    count = sum(map(len, skipped.values()))
    said = f"{plural(count, 'file')} {'is' if count == 1 else 'are'} skipped, "
    said += f"since kind {name} reads {', '.join(kind.suffixes)}: {'; '.join(groups)}"
    able: dict[str, list[str]] = {}
    for sort in skipped:
        others = (other for other in source_kinds().values() if other.holds_chats == kind.holds_chats)
        if readers := [other.name for other in others if other.reads(f"x{sort}")]:
            able.setdefault(" or ".join(readers), []).append(sort)
    return [said, *(f"{', '.join(able[of])}: a source of kind {of} with the same input reads them" for of in able)]
