"""Memory-mapped token files: the pages a batch touches are all that is ever in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPE
from niels_gpt.files.damage import Damaged


def open_tokens(path: str | Path) -> np.ndarray:
    """A read-only memory map of uint16 ids."""
    size = Path(path).stat().st_size
    if size == 0 or size % TOKEN_DTYPE.itemsize:
        what = f"is no token file ({size} bytes, where a whole number of 2-byte ids is expected): build it again"
        raise Damaged(path, what)
    # A plain array over the map: slicing np.memmap itself costs 2 microseconds more each time.
    return np.asarray(np.memmap(path, dtype=TOKEN_DTYPE, mode="r"))


def open_offsets(path: str | Path) -> np.ndarray:
    """A read-only memory map of where documents begin."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
