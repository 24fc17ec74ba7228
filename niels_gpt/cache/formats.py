"""The token file: little-endian uint16 ids end to end, and beside it the int64 offset at which each document starts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

TOKEN_DTYPE = np.dtype("<u2")
TOKEN_DTYPE_NAME = "uint16-le"


def write_token_file(tokens_path: Path, idx_path: Path, documents: Iterable[np.ndarray]) -> tuple[int, int]:
    """Append every document's ids; (documents, tokens) written. Memory holds one document and the offsets."""
    offsets = array("q")
    total = 0
    with tokens_path.open("wb") as f:
        for ids in documents:
            offsets.append(total)
            f.write(np.ascontiguousarray(ids, dtype=TOKEN_DTYPE).data)
            total += len(ids)
    with idx_path.open("wb") as f:  # given a path, numpy may choose another name
        np.save(f, np.frombuffer(offsets, dtype=np.int64))
    return len(offsets), total
