"""Dataset for pretraining: random windows of a sharded corpus, every window of it equally likely."""

from __future__ import annotations

from pathlib import Path

import torch

from niels_gpt.cache.meta import read_meta
from niels_gpt.cache.windows import TokenFile, TokenStream, check_lengths, split_targets


class PretrainTokenStreamDataset:
    """The shards of a folder. A shard is drawn in proportion to its windows; no window crosses two shards.

    `shards_dir` is the train or val folder of a cache: shard_*.bin of `build_pretrain_cache`, or part-*.bin of the
    pipeline's tokenize stage. Tokens that lie in a bucket are read by `cache.manifest.open_mix`.
    """

    def __init__(self, shards_dir: str | Path, *, T: int, device: str) -> None:
        self._stream, self._T, self._device = TokenStream(_token_files(Path(shards_dir))), T, device
        check_lengths({str(shards_dir): {"": self._stream}}, T=T)

    def get_batch(self, *, B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """(x, y), each (B, T) int64 on the device, y one token ahead of x."""
        numbers = torch.randint(0, self._stream.windows(self._T), (B,), generator=generator).numpy()
        return split_targets(torch.from_numpy(self._stream.gather(numbers, self._T)), device=self._device)


def _token_files(folder: Path) -> list[TokenFile]:
    """Return the token files of a folder in order, up to the number of tokens that the cache's meta.json counts.

    The pipeline's last part may go on behind its budget: only its manifest and meta.json know where that ends.
    """
    # By stem: part-00000 comes before part-00000-001.
    paths = sorted((*folder.glob("shard_*.bin"), *folder.glob("part-*.bin")), key=lambda path: path.stem)
    if not paths:
        raise ValueError(f"{folder} holds no shard_*.bin and no part-*.bin: build the cache first")
    files = [TokenFile.whole(path) for path in paths]
    meta = folder.parent / "meta.json"
    counted = read_meta(meta).get(f"{folder.name}_tokens") if meta.is_file() else None
    if counted is not None:
        surplus = sum(map(len, files)) - counted
        files[-1] = TokenFile(files[-1].path, len(files[-1]) - max(0, surplus))
    return files
