"""Token file format: uint16 ids in a .bin, int64 document offsets in an .npy."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from niels_gpt.files.checks import Damaged

TOKEN_DTYPE = np.dtype("<u2")
TOKEN_DTYPE_NAME = "uint16-le"


def write_token_file(tokens_path: Path, idx_path: Path, documents: Iterable[np.ndarray]) -> tuple[int, int]:
    """Write the ids and offsets of all documents; return (documents, tokens).

    Memory holds one document and the offsets.
    """
    offsets = array("q")
    total = 0
    with tokens_path.open("wb") as f:
        for ids in documents:
            offsets.append(total)
            f.write(np.ascontiguousarray(ids, dtype=TOKEN_DTYPE).data)
            total += len(ids)
    with idx_path.open("wb") as f:  # given a path, np.save may append .npy to it
        np.save(f, np.frombuffer(offsets, dtype=np.int64))
    return len(offsets), total


def read_offsets(path: str | Path, *, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (starts, lengths) of the documents after checking that they cover exactly `tokens` tokens."""
    try:
        starts = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # np.load fails in many ways on other formats: EOFError, SyntaxError, ...
        raise Damaged(path, f"is no file of offsets ({error}): build it again") from error
    fits = isinstance(starts, np.ndarray) and starts.dtype == np.int64 and starts.ndim == 1 and len(starts) > 0
    # Compared instead of subtracted: the difference of two corrupted int64s can overflow to a plausible value.
    if not fits or starts[0] != 0 or (starts[1:] <= starts[:-1]).any() or starts[-1] >= tokens:
        raise Damaged(path, f"does not hold the ascending offsets of {tokens:,} tokens: build it again")
    return starts, np.diff(np.append(starts, tokens))
