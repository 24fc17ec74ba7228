"""Windows of T+1 tokens of a corpus, by number: the one place where training rows are cut out of token arrays.

A stream is a list of arrays (one byte string, or the token files of a source). A window never crosses from one array
into the next. Window numbers run over all arrays, so that a uniform number is a uniform window. Of thousands of files
none is opened but those that a window falls into.

A stream may also know where its documents begin. Those that share a window do not see each other then; a token that
ends documents is no such sign, since nothing keeps one from standing in the middle of a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from niels_gpt.cache.token_files import OffsetFile, TokenFile


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
