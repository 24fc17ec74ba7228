"""256 new tokens at v0 size with the cache, and with the whole window through the model each time.

Run: python -m bench.generate
"""

from __future__ import annotations

import torch

from bench.reference import plain_generate
from bench.rounds import median_ratio, medians, print_result, seconds_in_turns
from niels_gpt.config import ModelConfig
from niels_gpt.generate import generate_ids, stream_ids
from niels_gpt.inference.sampling import Sampling
from niels_gpt.model.gpt import GPT

NEW_TOKENS = 256


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


def main() -> None:
    cfg = ModelConfig(T=272, dropout=0.0)  # room for the prompt and 256 tokens: what is compared is the cache
    model = talkative(cfg)
    prompt, greedy = list(b"The harbour lies"), Sampling(temperature=0)
    cached = generate_ids(model, prompt, max_new_tokens=NEW_TOKENS, sampling=greedy)
    assert cached == plain_generate(model, prompt, T=cfg.T, new_tokens=NEW_TOKENS), "both must write the same"
    assert len(set(cached)) > 10, "and more than one word"
    seconds = seconds_in_turns(
        {
            "with the cache": lambda: generate_ids(model, prompt, max_new_tokens=NEW_TOKENS, sampling=greedy),
            "window each time": lambda: plain_generate(model, prompt, T=cfg.T, new_tokens=NEW_TOKENS),
            "8 at once, together": lambda: list(
                stream_ids(model, [prompt] * 8, max_new_tokens=NEW_TOKENS, sampling=greedy)
            ),
        },
        rounds=11,
        calls=1,
    )
    rates = {name: NEW_TOKENS / value for name, value in medians(seconds).items()}
    rates["8 at once, together"] *= 8
    ratio = median_ratio(seconds["window each time"], seconds["with the cache"])
    print_result(f"{NEW_TOKENS} new tokens, V256 C256 L4 H4", rates, unit="tokens/s", ratio=ratio)


if __name__ == "__main__":
    main()
