"""Fixed-size shards of a token file: what a corpus too large for memory is sampled from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPE
from niels_gpt.cache.mmap import open_tokens


def write_shards(tokens_path: Path, idx_path: Path, out_dir: Path, *, shard_bytes: int, max_tokens: int | None) -> int:
    """Cut a token file into out_dir/shard_00000.bin, ... of `shard_bytes` each (the last may be shorter).

    A budget of `max_tokens` ends at a document's end. The offsets of the documents kept are written beside the shards,
    counted over all of them. Returns how many tokens were kept.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    tokens, offsets = open_tokens(tokens_path), np.load(idx_path)
    total = len(tokens)
    if max_tokens is not None and total > max_tokens:
        ends = np.append(offsets[1:], total)
        kept = int(np.searchsorted(ends, max_tokens, side="right"))
        if not kept:
            raise ValueError(
                f"a budget of {max_tokens:,} tokens is smaller than the first document of {tokens_path} "
                f"({int(ends[0]):,} tokens): raise it"
            )
        offsets, total = offsets[:kept], int(ends[kept - 1])
    shard_tokens = shard_bytes // TOKEN_DTYPE.itemsize
    for i, start in enumerate(range(0, total, shard_tokens)):
        tokens[start : min(start + shard_tokens, total)].tofile(out_dir / f"shard_{i:05d}.bin")
    np.save(out_dir / "offsets.npy", offsets)
    return total
