"""Windows of T+1 tokens by number, read from token files a slice at a time.

A stream is a list of arrays (one byte string, or the token files of a source). A window never crosses from one array
into the next. Window numbers run over all arrays, so that a uniform number is a uniform window. Of thousands of files
none is opened but those that a window falls into.

A stream may also know where its documents begin. Those that share a window do not see each other then; a token that
ends documents is no such sign, since nothing keeps one from standing in the middle of a text.
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


# Token files and their offsets, as every reader takes them: a slice at a time, with no file left open or mapped.
#
# A corpus may have more files than a process may have open, and more bytes than it should map. To open, read and close
# a file for every window costs 8 microseconds, over 15,000 files 1.5 times what it costs over 4; and of a file that is
# not in memory the kernel fetches the window's pages alone. Maps were tried: equal over 4 files, slower over 15,000,
# since a page that was read must be let go of again; and around a window the kernel reads ahead, by default 128 KiB.

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


class TokenStream:
    """Tokens of one source and split, where they lie (in memory, or in files); nothing is copied but windows.

    `documents`: for each of the arrays, where in it a document begins, ascending.
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
        self._ends: dict[int, np.ndarray] = {}  # by T

    @classmethod
    def of(cls, source: bytes | TokenStream) -> TokenStream:
        return source if isinstance(source, TokenStream) else cls([np.frombuffer(source, dtype=np.uint8)])

    def __len__(self) -> int:
        """Tokens in all."""
        return int(self.lengths.sum())

    def windows(self, T: int) -> int:
        """How many windows of T+1 tokens there are."""
        return int(self._window_ends(T)[-1])

    def gather(self, numbers: np.ndarray, T: int) -> np.ndarray:
        """The windows with these numbers: (n, T+1) int64."""
        if len(self.arrays) == 1 and isinstance(self.arrays[0], np.ndarray):
            return sliding_window_view(self.arrays[0], T + 1)[numbers].astype(np.int64)
        rows = [self.arrays[i][start : start + T + 1] for i, start in self._places(numbers, T)]
        # Joined as they are and widened at once: a third faster at B=32 than row by row.
        return np.concatenate((np.empty(0, dtype=np.uint8), *rows)).reshape(len(rows), T + 1).astype(np.int64)

    def segments(self, numbers: np.ndarray, T: int) -> np.ndarray | None:
        """Which document of its window each of the first T tokens is of, counted from 0: (n, T) int64. None where
        documents may see each other."""
        if self.documents is None:
            return None
        begun = np.zeros((len(numbers), T), dtype=np.int64)
        for row, (i, start) in enumerate(self._places(numbers, T)):
            begun[row, _between(self.documents[i], start + 1, start + T) - start] = 1
        return begun.cumsum(axis=1)

    def _places(self, numbers: np.ndarray, T: int) -> list[tuple[int, int]]:
        """In which array each window lies, and where in it."""
        ends = self._window_ends(T)
        which = np.searchsorted(ends[1:], numbers, side="right")
        return list(zip(which.tolist(), (numbers - ends[which]).tolist(), strict=True))

    def _window_ends(self, T: int) -> np.ndarray:
        """0, and behind each array how many windows there are up to its end."""
        if T not in self._ends:
            self._ends[T] = np.concatenate(([0], np.maximum(0, self.lengths - T).cumsum()))
        return self._ends[T]


def _between(offsets: np.ndarray | OffsetFile, start: int, stop: int) -> np.ndarray:
    if isinstance(offsets, OffsetFile):
        return offsets.between(start, stop)
    return offsets[slice(*np.searchsorted(offsets, (start, stop)))]


def check_lengths(streams: Mapping[str, Mapping[str, TokenStream]], *, T: int) -> None:
    """Raise, listing every {split: {source: stream}} that has no window of T+1 tokens."""
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
    """(B, T+1) -> x without the last token, y without the first."""
    rows = rows.to(device)
    return rows[:, :-1], rows[:, 1:]
