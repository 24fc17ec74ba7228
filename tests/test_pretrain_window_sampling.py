"""Windows of a sharded corpus: shifted by one, within the vocabulary, each as likely as any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from tests.token_caches import TOK, pretrain


def test_windows_are_shifted_and_within_the_vocabulary(tmp_path: Path) -> None:
    dataset = PretrainTokenStreamDataset(str(pretrain(tmp_path / "c") / "train"), T=32, device="cpu")
    x, y = dataset.get_batch(B=64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(y[:, :-1], x[:, 1:])
    assert x.shape == y.shape == (64, 32)
    assert x.dtype == y.dtype == torch.int64
    assert 0 <= int(x.min()) <= int(x.max()) < TOK.vocab_size


def test_the_generator_decides_the_windows(tmp_path: Path) -> None:
    dataset = PretrainTokenStreamDataset(pretrain(tmp_path / "c") / "train", T=16, device="cpu")
    batches = [dataset.get_batch(B=8, generator=torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2)]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])


def test_every_window_is_equally_likely(tmp_path: Path) -> None:
    np.arange(0, 11, dtype="<u2").tofile(tmp_path / "shard_00000.bin")  # 8 windows of T=3
    np.arange(100, 105, dtype="<u2").tofile(tmp_path / "shard_00001.bin")  # 2
    np.arange(200, 202, dtype="<u2").tofile(tmp_path / "shard_00002.bin")  # none
    dataset = PretrainTokenStreamDataset(tmp_path, T=3, device="cpu")
    x, _ = dataset.get_batch(B=20_000, generator=torch.Generator().manual_seed(0))
    starts, counts = np.unique(x[:, 0].numpy(), return_counts=True)
    assert starts.tolist() == [*range(8), 100, 101]
    assert np.all(np.abs(counts - 2000) < 5 * (2000 * 0.9) ** 0.5)


def test_a_folder_without_shards_or_too_short_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no shard_\*\.bin"):
        PretrainTokenStreamDataset(tmp_path, T=4, device="cpu")
    np.arange(4, dtype="<u2").tofile(tmp_path / "shard_00000.bin")
    with pytest.raises(ValueError, match="too short"):
        PretrainTokenStreamDataset(tmp_path, T=4, device="cpu")


@pytest.mark.parametrize("data", [b"", b"abc"])
def test_a_damaged_shard_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    np.arange(40, dtype="<u2").tofile(tmp_path / "shard_00000.bin")
    (tmp_path / "shard_00001.bin").write_bytes(data)
    with pytest.raises(ValueError, match=r"shard_00001\.bin is no token file .*: build it again"):
        PretrainTokenStreamDataset(tmp_path, T=4, device="cpu")
