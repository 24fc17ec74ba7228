"""Time of a batch from 15,000 token files, beside 4 files of the same total size. Run: python -m bench.token_files"""

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np

from bench.rounds import median_ratio, medians, print_result, seconds_in_turns
from niels_gpt.cache.windows import TokenFile, TokenStream
from niels_gpt.config import TrainConfig
from niels_gpt.train.pretraining import PretrainTask

FEW, MANY = 4, 15_000
TOKENS = 8192 * MANY  # 246 MB in all, which stay in the page cache
B, T, DOCUMENT = 32, 1024, 300


def write_files(folder: Path, number: int) -> TokenStream:
    """Write a stream of equal files with documents of equal length."""
    folder.mkdir()
    tokens = TOKENS // number
    data = np.random.default_rng(0).integers(0, 16_000, tokens, dtype=np.uint16)
    paths = [folder / f"part-{i:05d}" for i in range(number)]
    for path in paths:
        data.tofile(path.with_suffix(".bin"))
        np.save(path.with_suffix(".idx.npy"), np.arange(0, tokens, DOCUMENT))
    return TokenStream(
        [TokenFile.whole(path.with_suffix(".bin")) for path in paths],
        documents=[path.with_suffix(".idx.npy") for path in paths],
    )


def batches(stream: TokenStream) -> Callable[[], object]:
    cfg = TrainConfig(total_steps=1, B=B, p_train={"text": 1.0}, p_val={"text": 1.0})
    task = PretrainTask(train={"text": stream}, val={"text": stream}, cfg=cfg, T=T, device="cpu")
    steps = count()
    return lambda: task.batch(next(steps))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        masked = {f"{number:,} files": write_files(Path(folder, str(number)), number) for number in (FEW, MANY)}
        plain = {name: TokenStream(stream.arrays) for name, stream in masked.items()}
        for stream in masked.values():  # reads every index once, as after some hundred batches
            stream.segments(np.arange(0, stream.windows(T), stream.windows(T) // (2 * MANY)), T)
        for title, streams in (("a batch", plain), ("a batch with its documents", masked)):
            seconds = seconds_in_turns({name: batches(stream) for name, stream in streams.items()}, rounds=15, calls=40)
            few, many = seconds.values()
            ratio = median_ratio(many, few)
            print_result(f"{title}, B={B}, T={T}", medians(seconds), unit="s", ratio=ratio)


if __name__ == "__main__":
    main()
