"""Speed of generation with the engine: 1 and 8 rows, within the context and past it, sampled and greedy; and without a
KV cache, with a forward pass over the whole window for each token. At v0 size and at the sample's.

Run: python -m bench.generate [v0] [sample]
     python -m bench.generate cuda    on a GPU, in bf16: v0, v1 and 124M, 1 and 32 rows; the first token is timed apart
"""

import statistics
import sys
import time

import torch

from bench.reference import plain_generate
from bench.rounds import median_ratio, medians, print_result, seconds_in_turns
from bench.train import SIZES as GPU_SIZES
from niels_gpt.config import ModelConfig
from niels_gpt.inference.engine import Engine
from niels_gpt.inference.sampling import GREEDY, Sampling, SeededNoise
from niels_gpt.model.gpt import GPT
from tests.talkers import talkative

# Each model's context fits the prompt and the new tokens that are not generated past it.
SIZES = {
    "v0": ModelConfig(T=272, dropout=0.0),
    "sample": ModelConfig(V=1024, T=144, C=128, L=4, H=4, d_ff=512, dropout=0.0),
}
PROMPT = list(b"The harbour lies")


def written(model: GPT, prompts: list[list[int]], n: int, sampling: Sampling) -> list[list[int]]:
    """Generate n ids after each prompt, in one batch; past the context the window slides."""
    engine = Engine(model, slots=len(prompts))
    texts: dict[int, list[int]] = {engine.add(prompt, sampling, noise=SeededNoise(0)): [] for prompt in prompts}
    for _ in range(n):
        for token in engine.step():
            texts[token.row].append(token.id)
    return list(texts.values())


def measure(name: str, cfg: ModelConfig) -> None:
    model, n = talkative(cfg), cfg.T - len(PROMPT)
    (cached,) = written(model, [PROMPT], n, GREEDY)
    assert [*PROMPT, *cached] == plain_generate(model, PROMPT, T=cfg.T, new_tokens=n), "both must write the same"
    assert len(set(cached)) > 10, "and more than one word"
    full = [*PROMPT, *cached]
    seconds = seconds_in_turns(
        {
            "one row": lambda: written(model, [PROMPT], n, GREEDY),
            "window each time": lambda: plain_generate(model, PROMPT, T=cfg.T, new_tokens=n),
            "eight rows": lambda: written(model, [PROMPT] * 8, n, GREEDY),
            "one row, drawn": lambda: written(model, [PROMPT], n, Sampling()),
            "eight rows, drawn": lambda: written(model, [PROMPT] * 8, n, Sampling()),
            "one row, past the context": lambda: written(model, [full], n, GREEDY),
        },
        rounds=7,
        calls=1,
    )
    rates = {way: n * (8 if way.startswith("eight") else 1) / value for way, value in medians(seconds).items()}
    print_result(
        f"{name}: {n} new tokens, V{cfg.V} C{cfg.C} L{cfg.L} H{cfg.H}",
        rates,
        unit="tokens/s",
        ratio=median_ratio(seconds["window each time"], seconds["one row"]),
        eight_to_one=8 * median_ratio(seconds["one row"], seconds["eight rows"]),
        eight_to_one_drawn=8 * median_ratio(seconds["one row, drawn"], seconds["eight rows, drawn"]),
        past_to_within=median_ratio(seconds["one row, past the context"], seconds["one row"]),
    )


def on_gpu(name: str, cfg: ModelConfig, *, rounds: int = 7) -> None:
    """Time the rest of the context after prompts of 512 tokens or half the context, in one engine, as in a server."""
    model = talkative(cfg).cuda()
    prompt = torch.randint(cfg.V, (min(512, cfg.T // 2),), generator=torch.Generator().manual_seed(0)).tolist()
    print(f"{name} on {torch.cuda.get_device_name()}, bf16, {cfg.T - len(prompt)} new tokens after {len(prompt)}")
    for rows in (1, 32):
        engine = Engine(model, slots=rows, precision="bf16")
        for way, sampling in (("greedy", GREEDY), ("drawn", Sampling()), ("drawn from all", Sampling(1.0, None))):
            firsts, steps, wholes = [], [], []
            for number in range(rounds + 1):
                began = time.perf_counter()
                # Prompts differ each time, so that no prefix in a free slot is reused.
                handles = [
                    engine.add([number, row, *prompt[2:]], sampling, noise=SeededNoise(row)) for row in range(rows)
                ]
                engine.step()
                first = time.perf_counter()
                for _ in range(cfg.T - len(prompt) - 1):
                    engine.step()
                end = time.perf_counter()
                for handle in handles:
                    engine.drop(handle)
                if number:  # the first round records
                    firsts.append(first - began)
                    steps.append((end - first) / (cfg.T - len(prompt) - 1))
                    wholes.append(rows * (cfg.T - len(prompt)) / (end - began))
            step = statistics.median(steps)
            print(
                f"  {rows:2d} rows, {way:<15}{step * 1e6:8.0f} us a step, {rows / step:10,.0f} tokens/s; first tokens "
                f"after {statistics.median(firsts) * 1e3:.1f} ms; with them {statistics.median(wholes):,.0f} tokens/s",
                flush=True,
            )


def main() -> None:
    if sys.argv[1:] == ["cuda"]:
        for name, cfg in GPU_SIZES.items():
            on_gpu(name, cfg)
        return
    for name in sys.argv[1:] or SIZES:
        measure(name, SIZES[name])


if __name__ == "__main__":
    main()
