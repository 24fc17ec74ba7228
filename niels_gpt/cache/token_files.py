"""Token files and their offsets, as every reader takes them: a slice at a time, with no file left open or mapped.

A corpus may have more files than a process may have open, and more bytes than it should map. To open, read and close a
file for every window costs 8 microseconds, over 15,000 files 1.5 times what it costs over 4; and of a file that is not
in memory the kernel fetches the window's pages alone. Maps were tried: equal over 4 files, slower over 15,000, since a
page that was read must be let go of again; and around a window the kernel reads ahead, by default 128 KiB.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPE
from niels_gpt.files.damage import Damaged
from niels_gpt.files.sentences import name_file

_OFFSET_DTYPE = np.dtype("<i8")
_ID_BYTES, _OFFSET_BYTES = TOKEN_DTYPE.itemsize, _OFFSET_DTYPE.itemsize
_BLOCK = 1 << 20  # ids
_EVERY = 512  # of so many offsets one is kept in memory; to find a place among the others is to read 4 KiB


@dataclass(frozen=True)
class TokenFile:
    """The first `tokens` ids of a file: as long as they are, and read when it is sliced."""

    path: str
    tokens: int

    @classmethod
    def whole(cls, path: str | Path) -> TokenFile:
        return cls(str(path), count_tokens(path))

    def __len__(self) -> int:
        return self.tokens

    def largest(self) -> int:
        """Return the highest id, reading a block at a time."""
        return max(int(self[start : start + _BLOCK].max()) for start in range(0, self.tokens, _BLOCK))

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self.tokens)
        return np.frombuffer(_read(self.path, _ID_BYTES * start, _ID_BYTES * (stop - start)), TOKEN_DTYPE)


@dataclass(frozen=True)
class OffsetFile:
    """Where the documents of one token file begin in it, ascending, as `np.save` wrote them."""

    path: str

    def between(self, start: int, stop: int) -> np.ndarray:
        """The offsets from `start` on that are below `stop`."""
        header_bytes, count, marks = self._index
        # Bisected as plain integers: for one place at a time numpy's search takes three times as long.
        first = max(0, bisect_left(marks, start) - 1) * _EVERY  # the offset there is below `start`
        end = min(count, bisect_left(marks, stop) * _EVERY)
        data = _read(self.path, header_bytes + _OFFSET_BYTES * first, _OFFSET_BYTES * (end - first))
        offsets = np.frombuffer(data, _OFFSET_DTYPE)
        numbers = offsets.data
        return offsets[bisect_left(numbers, start) : bisect_left(numbers, stop)]

    @cached_property
    def _index(self) -> tuple[int, int, memoryview]:
        """Bytes before the first offset, how many offsets there are, and every 512th of them."""
        offsets = np.load(self.path, allow_pickle=False)
        assert (offsets.dtype, offsets.ndim) == (_OFFSET_DTYPE, 1), f"{self.path} was not checked"
        return os.stat(self.path).st_size - offsets.nbytes, len(offsets), offsets[::_EVERY].copy().data


def count_tokens(path: str | Path) -> int:
    """Return the number of ids in a file, from its size."""
    size = Path(path).stat().st_size
    if size == 0 or size % TOKEN_DTYPE.itemsize:
        what = f"is no token file ({size} bytes, where a whole number of 2-byte ids is expected): build it again"
        raise Damaged(path, what)
    return size // TOKEN_DTYPE.itemsize


def _read(path: str, start: int, size: int) -> bytes:
    """Read a range of bytes from a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        data = os.pread(descriptor, size, start)
    except OSError as error:
        name_file(error, path)
        raise
    finally:
        os.close(descriptor)
    if len(data) < size:
        raise Damaged(path, "is shorter than it was when it was checked: build it again")
    return data
