"""Speed of batches of spliced documents, and of a training step on spans alone, beside one on whole frames.

Run: python -m bench.splice
"""

import numpy as np
import torch

from bench.rounds import median_ratio, medians, print_result, seconds_in_turns
from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.model.loss import loss_fn
from niels_gpt.splice import MultiSpliceDocumentDataset
from niels_gpt.splice.task import masked_targets

S, K, B = 1024, 128, 4


def main() -> None:
    rng = np.random.default_rng(0)
    docs = [rng.integers(0, 256, 20_000).astype(np.uint16) for _ in range(10)]
    full = MultiSpliceDocumentDataset(docs, S=S, pad_id=0)
    rows = rng.integers(0, len(full), 32)
    draw = medians(seconds_in_turns({"batch of 32 x 1024": lambda: full.batch(rows)}, rounds=9, calls=20))
    print_result("ds.batch", draw, unit="s", tokens_per_second=32 * 1024 / draw["batch of 32 x 1024"])

    short = MultiSpliceDocumentDataset(docs, S=S, pad_id=0, content_length=K)
    torch.manual_seed(0)
    model = GPT(ModelConfig(V=256, T=S, C=64, L=2, H=2, d_ff=256, dropout=0.0))

    def step(layout: str) -> None:
        batch = short.batch(rows[:B] % len(short), layout=layout)
        segments = batch["segment_ids"] if layout == "frame" else None
        logits = model(batch["tokens"], position_ids=batch["position_ids"], segment_ids=segments)
        model.zero_grad()
        loss_fn(logits, masked_targets(batch)).backward()

    seconds = seconds_in_turns({"compact": lambda: step("compact"), "frame": lambda: step("frame")}, rounds=5, calls=2)
    ratio = median_ratio(seconds["frame"], seconds["compact"])
    print_result(f"forward and backward, S={S}, K={K}, B={B}", medians(seconds), unit="s", ratio=ratio)


if __name__ == "__main__":
    main()
