"""Steps and seconds in which a preset's recipe reaches the final loss of a plain AdamW loop, on the same token file.

Run: python -m bench.race SIZE TOKENS.bin [SEEDS [PRESET]]

On a GPU: SIZE is v1 or 124M, TOKENS.bin a file of 16-bit ids (any part of cache/tokens/NAME/train will do), PRESET v2
(default) or v3.

The plain loop is bench/reference.py, compiled, with nanoGPT's learning rate and schedule. Both train on windows of the
same tokens; 256 windows from the end of the file are held out. Time to compile and to score is not counted.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.reference import PlainLoop
from bench.train import SIZES, B, wait_for_gpu
from niels_gpt.cache.windows import TokenStream
from niels_gpt.cli.console import read_preset
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.eval.held_out import inference, token_losses
from niels_gpt.lr_schedule import scheduled_lr
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import computing_in
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import parse_params
from niels_gpt.rng import set_seed
from niels_gpt.train.loop import batches
from niels_gpt.train.pretraining import PretrainTask
from niels_gpt.train.step import build_step
from niels_gpt.train.task import Execution

HELD_OUT = 256  # windows
PLAIN_STEPS = {"v1": 1000, "124M": 600}
# Length of the recipe's run. A run that is cut off while its learning rate is high reaches the loss sooner than a short
# one that decays to its end: 180 steps ended at the loss that a run of 300 has after 165.
RECIPE_STEPS = {"v1": 300, "124M": 240}
SCORE_EVERY = 10


@dataclass(frozen=True)
class Text:
    """Token ids to train on, and held-out windows (n, T+1)."""

    train: np.ndarray
    held_out: np.ndarray

    @classmethod
    def of(cls, tokens: np.ndarray, *, T: int) -> "Text":
        edge = len(tokens) - HELD_OUT * (T + 1)
        return cls(tokens[:edge], tokens[edge:].reshape(HELD_OUT, T + 1).astype(np.int64))

    def loss(self, model: nn.Module) -> float:
        losses = []
        with inference(model), computing_in("bf16", "cuda"):
            for windows in torch.from_numpy(self.held_out).cuda().split(B):
                losses.append(token_losses(model, windows[:, :-1], windows[:, 1:]).mean())
        return float(torch.stack(losses).mean())


@dataclass(frozen=True)
class Point:
    step: int
    seconds: float  # of training, without compiling or scoring
    loss: float


def plain_curve(cfg: ModelConfig, text: Text, *, steps: int, seed: int, score_every: int) -> Iterator[Point]:
    schedule = TrainConfig(total_steps=steps, base_lr=6e-4, min_lr=6e-5, warmup_steps=100)
    loop = PlainLoop(cfg, text.train, B=B, device="cuda", bf16=True, compile=True, seed=seed)
    seconds = 0.0
    for n in range(steps):
        start = time.perf_counter()
        loop.step(lr=scheduled_lr(schedule, n))  # waits for the GPU, since the loss is read
        seconds += time.perf_counter() - start if n else 0.0
        if (n + 1) % score_every == 0 or n + 1 == steps:
            yield Point(n + 1, seconds, text.loss(loop.model))


def recipe_curve(cfg: ModelConfig, train_cfg: TrainConfig, text: Text, *, score_every: int) -> Iterator[Point]:
    stream = {"text": TokenStream([text.train])}
    task = PretrainTask(train=stream, val=stream, cfg=train_cfg, T=cfg.T, device="cuda")
    set_seed(train_cfg.seed)
    model = GPT(cfg).cuda()
    step = build_step(model, train_cfg, Execution(device="cuda", deterministic=False), state=None)
    seconds = 0.0
    with closing(batches(task, range(train_cfg.total_steps), device="cuda")) as feed:
        start = None
        for n, batch in enumerate(feed):
            step(batch, lr=scheduled_lr(train_cfg, n), n=n)
            if start is None:
                wait_for_gpu()
                start = time.perf_counter()
            if (n + 1) % score_every == 0 or n + 1 == train_cfg.total_steps:
                wait_for_gpu()
                seconds += time.perf_counter() - start
                yield Point(n + 1, seconds, text.loss(step.validated(model)))
                start = time.perf_counter()


def recipe(size: str, *, preset: str, steps: int, seed: int) -> tuple[ModelConfig, TrainConfig]:
    """Return a preset's options and training at another size and length; counts of steps scale with the run."""
    params = parse_params(read_preset(layout.PRESETS, preset))[1]
    sizes = {name: getattr(SIZES[size], name) for name in ("V", "T", "C", "L", "d_ff", "dropout")}
    if params["model"].get("activation") == "swiglu":
        sizes["d_ff"] = 64 * round(sizes["C"] * 8 / 3 / 64)  # three matrices: about as many weights as two of 4*C
    model = ModelConfig.from_section({**params["model"], **sizes})
    cfg = TrainConfig(p_train={"text": 1.0}, p_val={"text": 1.0}, **params["train"])
    narrower = (params["model"]["C"] / model.C) ** 0.5  # the rule in docs/recipe.md
    return model, replace(
        cfg,
        total_steps=steps,
        base_lr=cfg.base_lr * narrower,
        min_lr=cfg.min_lr * narrower,
        warmup_steps=min(cfg.warmup_steps, steps // 20),
        momentum_warmup=min(cfg.momentum_warmup, steps // 2),
        seed=seed,
        B=B,
    )


def race(size: str, tokens: np.ndarray, *, preset: str, seed: int) -> dict[str, Any]:
    cfg = SIZES[size]
    text = Text.of(tokens, T=cfg.T)
    *_, end = plain_curve(cfg, text, steps=PLAIN_STEPS[size], seed=seed, score_every=PLAIN_STEPS[size])
    torch._dynamo.reset()
    print(f"  seed {seed}: plain loop {end.loss:.4f} after {end.step} steps, {end.seconds:.1f} s", flush=True)
    settings = recipe(size, preset=preset, steps=RECIPE_STEPS[size], seed=seed)
    points = list(recipe_curve(*settings, text, score_every=SCORE_EVERY))
    torch._dynamo.reset()
    reached = next((point for point in points if point.loss <= end.loss), None)
    if reached is None:
        print(f"  seed {seed}: the recipe ends at {points[-1].loss:.4f} and does not reach it", flush=True)
        return {"plain": vars(end), "recipe": [vars(point) for point in points]}
    ratio = {"steps": reached.step / end.step, "seconds": reached.seconds / end.seconds}
    print(
        f"  seed {seed}: the recipe is there after {reached.step} steps ({ratio['steps']:.3f}), {reached.seconds:.2f} s"
        f" ({ratio['seconds']:.3f}); it ends at {points[-1].loss:.4f} after {points[-1].step}",
        flush=True,
    )
    return {"plain": vars(end), "recipe": [vars(point) for point in points], "ratio": ratio}


def main() -> None:
    if len(sys.argv) not in (3, 4, 5) or sys.argv[1] not in PLAIN_STEPS:
        sys.exit(__doc__)
    size, tokens = sys.argv[1], np.fromfile(sys.argv[2], dtype=np.uint16)
    seeds = range(int(sys.argv[3]) if len(sys.argv) > 3 else 3)
    preset = sys.argv[4] if len(sys.argv) > 4 else "v2"
    print(f"{preset} at {size} on {torch.cuda.get_device_name()}, {len(tokens):,} tokens")
    runs = [race(size, tokens, preset=preset, seed=seed) for seed in seeds]
    print(json.dumps({"size": size, "preset": preset, "runs": runs}))


if __name__ == "__main__":
    main()
