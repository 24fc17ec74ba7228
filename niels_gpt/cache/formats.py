"""Token file format: ids in a .bin (uint16, or uint32 for a large vocabulary), int64 document offsets in an .npy."""

from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from niels_gpt.files.checks import Damaged

ANSWER_IDS = "answer_ids"  # key, in a meta.json of chats, of the ids before and after an answer
TOKEN_DTYPE = np.dtype("<u2")  # of every vocabulary up to 65,536 entries


def write_token_file(
    tokens_path: Path, idx_path: Path, documents: Iterable[np.ndarray], *, dtype: np.dtype = TOKEN_DTYPE
) -> tuple[int, int]:
    """Write the ids, as `dtype`, and the offsets of all documents; return (documents, tokens).

    Memory holds one document and the offsets.
    """
    offsets = array("q")
    total = 0
    with tokens_path.open("wb") as f:
        for ids in documents:
            offsets.append(total)
            f.write(np.ascontiguousarray(ids, dtype=dtype).data)
            total += len(ids)
    with idx_path.open("wb") as f:  # given a path, np.save may append .npy to it
        np.save(f, np.frombuffer(offsets, dtype=np.int64))
    return len(offsets), total


def read_offsets(path: str | Path, *, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (starts, lengths) of the documents after checking that they cover exactly `tokens` tokens."""
    starts = np.load(path)
    lengths = np.diff(np.append(starts, tokens))
    if not len(starts) or starts[0] != 0 or (lengths < 1).any():
        raise Damaged(path, f"does not hold the ascending offsets of {tokens:,} tokens: build it again")
    return starts, lengths
