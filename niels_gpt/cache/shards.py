"""Fixed-size shards: what a corpus too large for memory is sampled from. Documents may lie across two of them."""

from __future__ import annotations

from array import array
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPE


class ShardWriter:
    """Writes documents one by one into folder/shard_00000.bin, ... and their offsets, counted over all shards."""

    def __init__(self, folder: Path, *, shard_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._shard_tokens = folder, shard_bytes // TOKEN_DTYPE.itemsize
        if self._shard_tokens < 1:
            raise ValueError(f"shard_bytes must hold at least one token, got {shard_bytes}")
        self._offsets = array("q")
        self._file: BinaryIO | None = None
        self.tokens = 0

    def __enter__(self) -> ShardWriter:
        return self

    def write(self, ids: np.ndarray) -> None:
        self._offsets.append(self.tokens)
        data = np.ascontiguousarray(ids, dtype=TOKEN_DTYPE)
        while len(data):
            number, used = divmod(self.tokens, self._shard_tokens)
            if used == 0:
                self._close_file()
                self._file = (self._folder / f"shard_{number:05d}.bin").open("wb")
            assert self._file is not None
            part = data[: self._shard_tokens - used]
            self._file.write(part.data)
            self.tokens += len(part)
            data = data[len(part) :]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._close_file()
        if kind is None:
            np.save(self._folder / "offsets.npy", np.array(self._offsets, dtype=np.int64))

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
