"""Token streams: access by number to all windows of T+1 tokens of a source, without loading its files.

A stream is a list of arrays (one byte string, or the token files of a source). No window crosses from one array into
the next. Windows are numbered over all arrays, so a uniformly random number is a uniformly random window. A file is
opened only while a window is read from it.

A stream may also have document offsets, from which attention is masked between the documents of a window. The
end-of-turn token cannot serve for that, since nothing rules it out within a document.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from niels_gpt.cache.formats import TOKEN_DTYPE
from niels_gpt.files.checks import Damaged
from niels_gpt.files.messages import name_file

if TYPE_CHECKING:
    import torch


# Files are read a slice at a time and never kept open or memory-mapped: a corpus may have more files than a process may
# open, and more bytes than it should map. Opening, reading and closing a file takes 8 us per window (with 15,000 files
# 1.5 times as long as with 4), and the kernel reads only the window's pages. mmap was as fast with 4 files but slower
# with 15,000, since pages have to be released again; and it reads ahead around a window, by default 128 KiB.

_OFFSET_DTYPE = np.dtype("<i8")
_OFFSET_BYTES = _OFFSET_DTYPE.itemsize
_BLOCK = 1 << 20  # ids per read of a whole file
_EVERY = 512  # every 512th offset is kept in memory; those in between are 4 KiB to read


@dataclass(frozen=True)
class TokenFile:
    """Array-like view of the first `tokens` ids of a file; slicing it reads them."""

    path: str
    tokens: int
    dtype: np.dtype = TOKEN_DTYPE

    @classmethod
    def whole(cls, path: str | Path, dtype: np.dtype = TOKEN_DTYPE) -> TokenFile:
        """Return a view of all ids of a file."""
        return cls(str(path), count_tokens(path, dtype), dtype)

    def __len__(self) -> int:
        return self.tokens

    def largest(self) -> int:
        """Return the highest id, reading a block at a time."""
        return max(int(self[start : start + _BLOCK].max()) for start in range(0, self.tokens, _BLOCK))

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self.tokens)
        size = self.dtype.itemsize
        return np.frombuffer(_read(self.path, size * start, size * (stop - start)), self.dtype)


@dataclass(frozen=True)
class OffsetFile:
    """Document offsets of one token file, in tokens and ascending, stored by `np.save` and read on demand."""

    path: str

    def between(self, start: int, stop: int) -> np.ndarray:
        """Return the offsets in [start, stop)."""
        header_bytes, count, marks = self._index
        # bisect on Python integers: for a single value np.searchsorted takes three times as long.
        first = max(0, bisect_left(marks, start) - 1) * _EVERY  # the last mark below `start`, or the first offset
        end = min(count, bisect_left(marks, stop) * _EVERY)
        data = _read(self.path, header_bytes + _OFFSET_BYTES * first, _OFFSET_BYTES * (end - first))
        offsets = np.frombuffer(data, _OFFSET_DTYPE)
        numbers = offsets.data
        return offsets[bisect_left(numbers, start) : bisect_left(numbers, stop)]

    @cached_property
    def _index(self) -> tuple[int, int, memoryview]:
        """Return the size of the .npy header in bytes, the number of offsets, and every 512th of them."""
        offsets = np.load(self.path, allow_pickle=False)
        assert (offsets.dtype, offsets.ndim) == (_OFFSET_DTYPE, 1), f"{self.path} was not checked"
        return os.stat(self.path).st_size - offsets.nbytes, len(offsets), offsets[::_EVERY].copy().data


def count_tokens(path: str | Path, dtype: np.dtype = TOKEN_DTYPE) -> int:
    """Return the number of ids in a token file, computed from its size."""
    size = Path(path).stat().st_size
    each = dtype.itemsize
    if size == 0 or size % each:
        what = f"is no token file ({size} bytes, where a whole number of {each}-byte ids is expected): build it again"
        raise Damaged(path, what)
    return size // each


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


class TokenStream:
    """Tokens of one source and split, in memory or in files; only the windows that are asked for are copied.

    `documents` has the ascending document offsets of each array; None: no boundaries.
    """

    def __init__(
        self,
        arrays: Sequence[np.ndarray | TokenFile],
        *,
        documents: Sequence[np.ndarray | OffsetFile] | None = None,
    ) -> None:
        assert documents is None or len(documents) == len(arrays), "offsets are those of each array"
        self.arrays, self.documents = list(arrays), documents
        self.lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        self._ends: dict[int, np.ndarray] = {}  # T -> result of _window_ends

    @classmethod
    def of(cls, source: bytes | TokenStream) -> TokenStream:
        """Return a stream unchanged, or wrap bytes as one (one token per byte)."""
        return source if isinstance(source, TokenStream) else cls([np.frombuffer(source, dtype=np.uint8)])

    def __len__(self) -> int:
        """Return the total number of tokens."""
        return int(self.lengths.sum())

    def windows(self, T: int) -> int:
        """Return the number of windows of T+1 tokens."""
        return int(self._window_ends(T)[-1])

    def gather(self, numbers: np.ndarray, T: int) -> np.ndarray:
        """Return the windows with these numbers: `(n, T+1)` int64."""
        if len(self.arrays) == 1 and isinstance(self.arrays[0], np.ndarray):
            return sliding_window_view(self.arrays[0], T + 1)[numbers].astype(np.int64)
        rows = [self.arrays[i][start : start + T + 1] for i, start in self._places(numbers, T)]
        # Concatenate in the stored dtype and convert once: a third faster at B=32 than row by row.
        return np.concatenate((np.empty(0, dtype=np.uint8), *rows)).reshape(len(rows), T + 1).astype(np.int64)

    def segments(self, numbers: np.ndarray, T: int) -> np.ndarray | None:
        """Return the document index, from 0, of the first T tokens of each window: `(n, T)` int64.

        None if the stream has no document offsets.
        """
        if self.documents is None:
            return None
        # A 1 where a document begins, except at the window's first token, which is in document 0 either way; the
        # running sum then numbers the documents.
        begun = np.zeros((len(numbers), T), dtype=np.int64)
        for row, (i, start) in enumerate(self._places(numbers, T)):
            begun[row, _between(self.documents[i], start + 1, start + T) - start] = 1
        return begun.cumsum(axis=1)

    def _places(self, numbers: np.ndarray, T: int) -> list[tuple[int, int]]:
        """Return (array index, start within the array) of each window."""
        ends = self._window_ends(T)
        which = np.searchsorted(ends[1:], numbers, side="right")
        return list(zip(which.tolist(), (numbers - ends[which]).tolist(), strict=True))

    def _window_ends(self, T: int) -> np.ndarray:
        """Return the cumulative number of windows: 0, then the total up to and including each array."""
        if T not in self._ends:
            self._ends[T] = np.concatenate(([0], np.maximum(0, self.lengths - T).cumsum()))
        return self._ends[T]


def _between(offsets: np.ndarray | OffsetFile, start: int, stop: int) -> np.ndarray:
    if isinstance(offsets, OffsetFile):
        return offsets.between(start, stop)
    return offsets[slice(*np.searchsorted(offsets, (start, stop)))]


def check_lengths(streams: Mapping[str, Mapping[str, TokenStream]], *, T: int) -> None:
    """Raise a ValueError listing every stream, given as {split: {source: stream}}, without a window of T+1 tokens."""
    short = [
        f"{name} {split} has {len(stream):,}"
        for split, sources in streams.items()
        for name, stream in sources.items()
        if stream.windows(T) < 1
    ]
    if short:
        raise ValueError(
            f"too short for a window of T+1 = {T + 1} tokens: {', '.join(short)}; add text, lower model.T, or raise "
            "parts.text_bytes where parts are cut smaller than a window"
        )


def split_targets(rows: torch.Tensor, *, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Split `(B, T+1)` rows into inputs x and targets y, each `(B, T)` on `device`."""
    rows = rows.to(device)
    return rows[:, :-1], rows[:, 1:]
