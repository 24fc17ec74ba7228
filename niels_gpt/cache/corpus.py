"""The text that a tokenizer is trained on: a sample of every source's training documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from niels_gpt.cache.integrity import read_split
from niels_gpt.cache.meta import read_meta
from niels_gpt.data.documents import FILE_NAME, read_texts


def sampled_texts(sources: Mapping[str, tuple[Path, Path]], *, sample_bytes: int, seed: int) -> Iterator[str]:
    """About `sample_bytes` of train rows, each source in proportion to its size, drawn by seed and read in order.

    `sources`: the folder of documents and the folder of the split of each.
    """
    sizes = [read_meta(raw / "source.json", required=["bytes"])["bytes"] for raw, _ in sources.values()]
    share = min(1.0, sample_bytes / sum(sizes))
    for name in sorted(sources):
        raw, split = sources[name]
        rows = read_split(split, raw / FILE_NAME)["train"]
        if share < 1:
            import torch

            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).numpy()
            rows = np.sort(rows[order[: max(1, int(len(rows) * share))]])
        for texts in read_texts(raw, rows):
            yield from texts
