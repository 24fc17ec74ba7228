"""Dataset for pretraining: random windows of a sharded corpus, every window of it equally likely."""

from __future__ import annotations

from pathlib import Path

import torch

from niels_gpt.batching import split_targets
from niels_gpt.cache.token_files import TokenFile
from niels_gpt.cache.windows import TokenStream, check_lengths


class PretrainTokenStreamDataset:
    """The shards of a folder. A shard is drawn in proportion to its windows; no window crosses two shards."""

    def __init__(self, shards_dir: str | Path, *, T: int, device: str) -> None:
        paths = sorted(Path(shards_dir).glob("shard_*.bin"))
        if not paths:
            raise ValueError(f"{shards_dir} holds no shard_*.bin: build the cache first")
        self._stream, self._T, self._device = TokenStream([TokenFile.whole(path) for path in paths]), T, device
        check_lengths({str(shards_dir): {"": self._stream}}, T=T)

    def get_batch(self, *, B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """(x, y), each (B, T) int64 on the device, y one token ahead of x."""
        numbers = torch.randint(0, self._stream.windows(self._T), (B,), generator=generator).numpy()
        return split_targets(torch.from_numpy(self._stream.gather(numbers, self._T)), device=self._device)
