"""Pretraining dataset: uniformly random windows of the token files in one folder."""

from pathlib import Path

import torch

from niels_gpt.cache.formats import TOKEN_DTYPE
from niels_gpt.cache.meta import read_meta
from niels_gpt.cache.windows import TokenFile, TokenStream, check_lengths, split_targets
from niels_gpt.tokenizer.vocabulary import token_dtype


class PretrainTokenStreamDataset:
    """Dataset of all windows of T+1 tokens within the shards of a folder; no window crosses two shards.

    `shards_dir` is the train or val folder of a cache: shard_*.bin of `build_pretrain_cache`, or part-*.bin of the
    pipeline's tokenize stage. For tokens in a bucket use `cache.windows.open_mix`.
    """

    def __init__(self, shards_dir: str | Path, *, T: int, device: str) -> None:
        self._stream, self._T, self._device = TokenStream(_token_files(Path(shards_dir))), T, device
        check_lengths({str(shards_dir): {"": self._stream}}, T=T)

    def get_batch(self, *, B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (x, y), each `(B, T)` int64 on the device, with y one token ahead of x."""
        numbers = torch.randint(0, self._stream.windows(self._T), (B,), generator=generator).numpy()
        return split_targets(torch.from_numpy(self._stream.gather(numbers, self._T)), device=self._device)


def _token_files(folder: Path) -> list[TokenFile]:
    """Return the token files of a folder in order, cut to the number of tokens in the cache's meta.json.

    The pipeline's last part may be longer than its token budget; only the manifest and meta.json say where it ends.
    """
    # Sorted by stem, so that part-00000 comes before part-00000-001.
    paths = sorted((*folder.glob("shard_*.bin"), *folder.glob("part-*.bin")), key=lambda path: path.stem)
    if not paths:
        raise ValueError(f"{folder} holds no shard_*.bin and no part-*.bin: build the cache first")
    meta = folder.parent / "meta.json"
    facts = read_meta(meta) if meta.is_file() else {}
    dtype = token_dtype(facts["vocab_size"]) if "vocab_size" in facts else TOKEN_DTYPE
    files = [TokenFile.whole(path, dtype) for path in paths]
    counted = facts.get(f"{folder.name}_tokens")
    if counted is not None:
        surplus = sum(map(len, files)) - counted
        files[-1] = TokenFile(files[-1].path, len(files[-1]) - max(0, surplus), dtype)
    return files
