"""New tokens with the engine: one row and eight, within the context and past it, drawn and greedy; and without a cache,
the whole window through the model each time. At v0 size and at the sample's.

Run: python -m bench.generate [v0] [sample]
"""

from __future__ import annotations

import sys

import torch

from bench.reference import plain_generate
from bench.rounds import median_ratio, medians, print_result, seconds_in_turns
from niels_gpt.config import ModelConfig
from niels_gpt.inference.engine import Engine
from niels_gpt.inference.noise import seeded
from niels_gpt.inference.sampling import GREEDY, Sampling
from niels_gpt.model.gpt import GPT

# Each has room for the prompt and as many new tokens as are not past the context.
SIZES = {
    "v0": ModelConfig(T=272, dropout=0.0),
    "sample": ModelConfig(V=1024, T=144, C=128, L=4, H=4, d_ff=512, dropout=0.0),
}
PROMPT = list(b"The harbour lies")


def talkative(cfg: ModelConfig) -> GPT:
    """A new model says one token for ever, whatever it has read: nothing that goes wrong in generation would show. Of
    this one the biases and norms count, too, and what it says next depends on all it has read."""
    torch.manual_seed(0)
    model = GPT(cfg).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        model.tok_emb.weight.mul_(0.3)
    return model


def written(model: GPT, prompts: list[list[int]], n: int, sampling: Sampling) -> list[list[int]]:
    """n new ids after each prompt, side by side; past the context they slide."""
    engine = Engine(model, slots=len(prompts))
    texts: dict[int, list[int]] = {engine.add(prompt, sampling, noise=seeded(0)): [] for prompt in prompts}
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


def main() -> None:
    for name in sys.argv[1:] or SIZES:
        measure(name, SIZES[name])


if __name__ == "__main__":
    main()
