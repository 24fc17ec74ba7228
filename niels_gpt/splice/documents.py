"""Documents of a token store: one file of ids, and where each document begins in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from niels_gpt.cache.integrity import read_checked, read_offsets
from niels_gpt.cache.mmap import open_tokens
from niels_gpt.files.ranks import ALONE, Ranks


class TokenStore:
    """The training documents of a folder of token files, memory-mapped."""

    def __init__(self, folder: str | Path, *, ranks: Ranks = ALONE) -> None:
        read_checked(Path(folder, "meta.json"), ranks=ranks)
        self._tokens = open_tokens(Path(folder, "train_tokens.bin"))
        self._starts, self.lengths = read_offsets(Path(folder, "train_idx.npy"), tokens=len(self._tokens))

    def document(self, row: int) -> np.ndarray:
        return self._tokens[self._starts[row] : self._starts[row] + self.lengths[row]]
