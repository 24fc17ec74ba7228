"""Token files and their offsets as training reads them: a window at a time, with no file left open or mapped.

A corpus may have more files than a process may have open, and more bytes than it should map. To open, read and close a
file for every window costs 8 microseconds, over 15,000 files 1.5 times what it costs over 4; and of a file that is not
in memory the kernel fetches the window's pages alone. Maps were tried: equal over 4 files, slower over 15,000, since a
page that was read must be let go of again; and around a window the kernel fetches 64 KiB or more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPE
from niels_gpt.files.damage import Damaged
from niels_gpt.files.sentences import name_file

_OFFSET_DTYPE = np.dtype("<i8")
_EVERY = 512  # of so many offsets one is kept in memory; to find a place among the others is to read 4 KiB


@dataclass(frozen=True)
class TokenFile:
    """The first `tokens` ids of a file: as long as they are, and read when it is sliced."""

    path: Path
    tokens: int

    @classmethod
    def whole(cls, path: str | Path) -> TokenFile:
        return cls(Path(path), count_tokens(path))

    def __len__(self) -> int:
        return self.tokens

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self.tokens)
        return _read(self.path, start, stop - start, dtype=TOKEN_DTYPE)


@dataclass(frozen=True)
class OffsetFile:
    """Where the documents of one token file begin in it, ascending, as `np.save` wrote them."""

    path: Path

    def between(self, start: int, stop: int) -> np.ndarray:
        """The offsets from `start` on that are below `stop`."""
        header_bytes, count, marks = self._index
        first = max(0, int(np.searchsorted(marks, start)) - 1) * _EVERY  # the offset there is below `start`
        end = min(count, int(np.searchsorted(marks, stop)) * _EVERY)
        offsets = _read(self.path, first, end - first, dtype=_OFFSET_DTYPE, header_bytes=header_bytes)
        return offsets[slice(*np.searchsorted(offsets, (start, stop)))]

    @cached_property
    def _index(self) -> tuple[int, int, np.ndarray]:
        """Bytes before the first offset, how many offsets there are, and every 512th of them."""
        offsets = np.load(self.path, allow_pickle=False)
        return self.path.stat().st_size - offsets.nbytes, len(offsets), offsets[::_EVERY].copy()


def count_tokens(path: str | Path) -> int:
    """How many ids a file holds, by its size."""
    size = Path(path).stat().st_size
    if size == 0 or size % TOKEN_DTYPE.itemsize:
        what = f"is no token file ({size} bytes, where a whole number of 2-byte ids is expected): build it again"
        raise Damaged(path, what)
    return size // TOKEN_DTYPE.itemsize


def _read(path: Path, first: int, count: int, *, dtype: np.dtype, header_bytes: int = 0) -> np.ndarray:
    """`count` numbers of a file, from number `first` on."""
    size = max(0, count) * dtype.itemsize
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            data = os.pread(descriptor, size, header_bytes + first * dtype.itemsize)
        finally:
            os.close(descriptor)
    except OSError as error:
        name_file(error, path)
        raise
    if len(data) < size:
        raise Damaged(path, "is shorter than it was when it was checked: build it again")
    return np.frombuffer(data, dtype=dtype)
