"""Files of a source's folder that are not read: counted and named by what they are, so that none is missed in silence.

Nothing of this is part of what is loaded: it is said, and changes no hash.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from niels_gpt.data.readers.files import list_files, unpacked_suffix
from niels_gpt.files.sentences import visible

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
