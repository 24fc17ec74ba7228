"""Training speed in tokens/s, beside a plain loop in the same process; and both losses, which must be alike.

Run: python -m bench.train            on a CPU, the v0 size, under two minutes
     python -m bench.train cuda       on a GPU: v0, v1 and 124M, and the cost of sampling batches
     python -m bench.train curves SIZE STEPS SEEDS TOKENS.bin
                                      on a GPU: float32 against bf16, on a file of 16-bit ids
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
import torch

from bench.reference import PlainLoop, synthetic_tokens
from bench.rounds import median_ratio, medians
from niels_gpt.cache.windows import TokenStream
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.device import keep_freed_memory
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import Precision
from niels_gpt.model.size import flops_per_token
from niels_gpt.rng import set_seed
from niels_gpt.train.loop import batches, train
from niels_gpt.train.meter import matmul_flops
from niels_gpt.train.pretraining import PretrainTask
from niels_gpt.train.step import build_step
from niels_gpt.train.task import Execution

SIZES = {
    "v0": ModelConfig(dropout=0.0),
    "v1": ModelConfig(V=16128, T=1024, C=512, L=8, H=8, d_ff=2048, dropout=0.0),
    "124M": ModelConfig(V=50304, T=1024, C=768, L=12, H=12, d_ff=3072, dropout=0.0),
}
B = 32


class OurLoop:
    """Loop of niels_gpt.train: its feed and its step; losses stay on the device until they are read."""

    def __init__(self, cfg: ModelConfig, tokens: np.ndarray, *, precision: Precision, execution: Execution) -> None:
        train_cfg = TrainConfig(total_steps=10**8, B=B, p_train={"text": 1.0}, precision=precision)
        stream = {"text": TokenStream([tokens])}
        task = PretrainTask(train=stream, val=stream, cfg=train_cfg, T=cfg.T, device=execution.device)
        set_seed(0)
        self.model = GPT(cfg).to(execution.device)
        self._step = build_step(self.model, train_cfg, execution, state=None)
        self._feed = batches(task, range(10**9), device=execution.device)
        self._batch = next(self._feed)
        self._n = 0
        self.losses: list[torch.Tensor] = []

    def step(self) -> None:
        self._batch = next(self._feed)
        self.step_on_the_same_batch()

    def step_on_the_same_batch(self) -> None:
        self.losses.append(self._step(self._batch, lr=1e-3, n=self._n))
        self._n += 1

    def close(self) -> None:
        self._feed.close()


def tokens_a_second(
    loops: dict[str, Callable[[], None]], *, T: int, rounds: int, steps: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return speeds, and ratios to the first: medians over rounds in which the loops take turns."""
    speeds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds + 1):
        for name, step in loops.items():
            # An optimization of this project for CPUs, which a plain loop does not have.
            keep_freed_memory(not name.startswith("plain"))
            step()
            wait_for_gpu()
            start = time.perf_counter()
            for _ in range(steps):
                step()
            wait_for_gpu()
            if number:  # the first round is a warm-up
                speeds[name].append(steps * B * T / (time.perf_counter() - start))
    first = next(iter(speeds.values()))
    return medians(speeds), {name: median_ratio(values, first) for name, values in speeds.items()}


def wait_for_gpu() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def on_cpu() -> dict[str, object]:
    cfg = SIZES["v0"]
    tokens = synthetic_tokens(cfg.V, 400_000)
    plain = PlainLoop(cfg, tokens, B=B, device="cpu", bf16=False, compile=False)
    ours = {
        "niels_gpt, float32": OurLoop(cfg, tokens, precision="float32", execution=Execution()),
        "niels_gpt, bf16": OurLoop(cfg, tokens, precision="bf16", execution=Execution()),
    }
    loops = {"plain loop, float32": plain.step, **{name: loop.step for name, loop in ours.items()}}
    speeds, ratios = tokens_a_second(loops, T=cfg.T, rounds=9, steps=3)
    losses = [plain.losses, *(torch.stack(loop.losses).tolist() for loop in ours.values())]
    final = dict(zip(loops, (statistics.mean(values[-4:]) for values in losses), strict=True))
    print(f"training at v0 size on {torch.get_num_threads()} CPU threads (V256 T256 C256 L4 H4 B32)")
    for name, speed in speeds.items():
        end = f"loss at step {len(losses[0])}: {final[name]:.3f}"
        print(f"  {name:<27}{speed:>12,.0f} tokens/s{ratios[name]:>8.2f}x   {end}")
    return {"size": "v0", "device": "cpu", "tokens_per_second": speeds, "ratio": ratios, "loss": final}


def on_gpu(sizes: list[str]) -> dict[str, object]:
    peak = matmul_flops("cuda", "bf16")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, a large bf16 product {peak / 1e12:,.0f} TFLOP/s")
    results: dict[str, object] = {"device": torch.cuda.get_device_name(), "matmul_flops": peak}
    tokens = synthetic_tokens(256, 1_000_000)
    for size in sizes:
        cfg = SIZES[size]
        steps = {"v0": 300, "v1": 40, "124M": 15}[size]
        plain = PlainLoop(cfg, tokens, B=B, device="cuda", bf16=True, compile=True)
        execution = Execution(device="cuda", deterministic=False)
        with closing(OurLoop(cfg, tokens, precision="bf16", execution=execution)) as ours:
            loops = {"plain": plain.step, "niels_gpt": ours.step, "one batch": ours.step_on_the_same_batch}
            speeds, ratios = tokens_a_second(loops, T=cfg.T, rounds=5, steps=steps)
        used = speeds["niels_gpt"] * flops_per_token(ours.model, T=cfg.T) / peak
        data = 1 - ratios["niels_gpt"] / ratios["one batch"]
        print(
            f"  {size:<5}{speeds['niels_gpt'] / 1e6:.3f} M tokens/s, {used:.0%} of that rate; batches cost {data:.1%}; "
            f"plain loop, compiled, {speeds['plain'] / 1e6:.3f} M ({ratios['niels_gpt']:.2f}x)",
            flush=True,
        )
        results[size] = {**speeds, "utilisation": used, "data_share": data}
        torch._dynamo.reset()
    return results


def curves(size: str, tokens: np.ndarray, *, steps: int, seeds: range) -> dict[str, object]:
    """Train in float32 and in bf16 by `train`: held-out losses, and the largest distance between the curves."""
    model_cfg, edge = SIZES[size], len(tokens) * 19 // 20
    learned, kept = ({"text": TokenStream([part])} for part in (tokens[:edge], tokens[edge:]))
    held_out: dict[Precision, list[float]] = {"float32": [], "bf16": []}
    gaps = []
    for seed in seeds:
        smooth = []
        for precision, losses in held_out.items():
            cfg = TrainConfig(
                total_steps=steps, base_lr=6e-4, min_lr=6e-5, warmup_steps=steps // 10, seed=seed, B=B,
                p_train={"text": 1.0}, p_val={"text": 1.0}, eval_every=steps, precision=precision,
            )  # fmt: skip
            task = PretrainTask(train=learned, val=kept, cfg=cfg, T=model_cfg.T, device="cuda")
            set_seed(seed)
            execution = Execution(device="cuda", deterministic=False)
            run = train(GPT(model_cfg).to("cuda"), task, execution=execution)
            losses.append(run.validations[-1]["val_loss"])
            smooth.append(np.convolve(run.losses, np.full(20, 1 / 20), mode="valid"))
            torch._dynamo.reset()
        gaps.append(float(np.abs(smooth[0] - smooth[1]).max()))
        ends = ", ".join(f"{precision} {losses[-1]:.4f}" for precision, losses in held_out.items())
        print(
            f"  {size}, seed {seed}, {steps} steps: {ends}; means of 20 steps differ by {gaps[-1]:.4f} at most",
            flush=True,
        )
    return {"size": size, "steps": steps, "held_out": held_out, "largest_gap": gaps}


def main() -> None:
    match sys.argv[1:]:
        case []:
            result = on_cpu()
        case ["cuda"]:
            result = on_gpu(list(SIZES))
        case ["curves", size, steps, seeds, path]:
            result = curves(size, np.fromfile(path, dtype=np.uint16), steps=int(steps), seeds=range(int(seeds)))
        case _:
            sys.exit(__doc__)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
