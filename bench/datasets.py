"""Speed of the cache's datasets, beside plain loops over the same files. Run: python -m bench.datasets"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bench.rounds import median_ratio, medians, print_result, seconds_in_turns
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cache.sft_dataset import SFTExampleDataset

B, T = 32, 1024
ASST, EOT = 1, 2


def per_row(shards: Sequence[np.ndarray], generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    xs, ys = [], []
    for _ in range(B):
        shard = shards[int(torch.randint(0, len(shards), (1,), generator=generator))]
        start = int(torch.randint(0, len(shard) - T, (1,), generator=generator))
        window = shard[start : start + T + 1]
        xs.append(torch.from_numpy(window[:-1].astype(np.int64)))
        ys.append(torch.from_numpy(window[1:].astype(np.int64)))
    return torch.stack(xs), torch.stack(ys)


def per_token(tokens: np.ndarray, starts: np.ndarray, generator: torch.Generator) -> torch.Tensor:
    rows = []
    for _ in range(B):
        i = int(torch.randint(0, len(starts), (1,), generator=generator))
        end = starts[i + 1] if i + 1 < len(starts) else len(tokens)
        sequence = [int(t) for t in tokens[starts[i] : end]][: T + 1]
        length = len(sequence)
        sequence += [EOT] * (T + 1 - length)
        inside, masked = False, []
        for place, token in enumerate(sequence):
            masked.append(token if inside and place < length else -100)
            inside = token == ASST or (inside and token != EOT)
        rows.append(torch.tensor(masked[1:]))
    return torch.stack(rows)


def main() -> None:
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for i in range(4):
            rng.integers(3, 16_000, 4_000_000, dtype=np.uint16).tofile(root / f"shard_{i:05d}.bin")
        turns = (rng.integers(3, 900, 150), rng.integers(3, 900, 250))
        chats = [np.concatenate(([0], turns[0], [EOT, ASST], turns[1], [EOT])) for _ in range(2000)]
        np.concatenate(chats).astype("<u2").tofile(root / "tokens.bin")
        starts = np.cumsum([0, *map(len, chats)])[:-1].astype(np.int64)
        np.save(root / "idx.npy", starts)

        stream = PretrainTokenStreamDataset(root, T=T, device="cpu")
        shards = [np.memmap(root / f"shard_{i:05d}.bin", dtype="<u2", mode="r") for i in range(4)]
        seconds = seconds_in_turns(
            {
                "PretrainTokenStreamDataset": lambda: stream.get_batch(B=B, generator=generator),
                "per-row loop": lambda: per_row(shards, generator),
            },
            rounds=9,
            calls=5,
        )
        ratio = median_ratio(seconds["per-row loop"], seconds["PretrainTokenStreamDataset"])
        print_result(f"a batch of windows, B={B}, T={T}", medians(seconds), unit="s", ratio=ratio)

        sft = SFTExampleDataset(root / "tokens.bin", root / "idx.npy", T=T, device="cpu", eot_id=EOT, asst_id=ASST)
        tokens = np.memmap(root / "tokens.bin", dtype="<u2", mode="r")
        seconds = seconds_in_turns(
            {
                "SFTExampleDataset": lambda: sft.get_batch(B=B, generator=generator),
                "per-token loop": lambda: per_token(tokens, starts, generator),
            },
            rounds=9,
            calls=5,
        )
        ratio = median_ratio(seconds["per-token loop"], seconds["SFTExampleDataset"])
        print_result(f"a batch of chats, B={B}, T={T}", medians(seconds), unit="s", ratio=ratio)


if __name__ == "__main__":
    main()
