"""Text generation, and top-k and sampling of a single row."""

from collections.abc import Sequence

import torch

from niels_gpt.inference.engine import Engine, RowsFailed
from niels_gpt.inference.sampling import Draw, Sampling, next_noise
from niels_gpt.model.gpt import GPT
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from niels_gpt.tokenizer.vocabulary import Tokenizer


def top_k_filter(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Set all but the k largest logits of the last dimension to -inf; of tied logits only k in total are kept."""
    Sampling(top_k=k)  # checks it
    kept = logits.topk(min(k, logits.shape[-1]), dim=-1)
    return torch.full_like(logits, float("-inf")).scatter(-1, kept.indices, kept.values)


def sample_next_token(
    logits_1d: torch.Tensor, *, temperature: float, top_k: int | None, generator: torch.Generator | None = None
) -> int:
    """Sample one id from softmax(`(V,)` logits / temperature) after top-k; temperature 0 is greedy."""
    logits, V = logits_1d.float().cpu(), len(logits_1d)
    draw = Draw([Sampling(temperature, top_k)], V=V, device=logits.device)
    noise = next_noise({0: generator} if temperature > 0 else {}, rows=1, V=V)
    if (id := int(draw.ids(logits[None], torch.as_tensor(noise)))) < 0:
        raise RowsFailed([0], [])
    return id


def generate(
    model: GPT,
    prompt_text: str,
    *,
    max_new_tokens: int,
    temperature: float = 0.9,
    top_k: int | None = 50,
    tokenizer: Tokenizer | None = None,
    generator: torch.Generator | None = None,
) -> str:
    """Return the prompt and its continuation.

    Without a tokenizer, text is bytes (V = 256). With one, its end-of-turn id ends the text. Each new token attends to
    the last T ids only, at positions 0..len-1.
    """
    tokenizer = tokenizer or ByteTokenizer()
    ids = generate_ids(
        model,
        tokenizer.encode(prompt_text),
        max_new_tokens=max_new_tokens,
        sampling=Sampling(temperature, top_k),
        stop=tokenizer.special_token_ids()["eot"],
        generator=generator,
    )
    return tokenizer.decode(ids)


def generate_ids(
    model: GPT,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stop: int | None = None,
    generator: torch.Generator | None = None,
) -> list[int]:
    """Return the prompt's ids and at most `max_new_tokens` sampled ids; ends before the id `stop`."""
    ids, engine = list(prompt), Engine(model, slots=1)
    engine.add(prompt, sampling, noise=generator, keep=model.cfg.T)
    was_training = model.training
    model.eval()
    try:
        for _ in range(max_new_tokens):
            (token,) = engine.step()
            if token.id == stop:
                break
            ids.append(token.id)
    finally:
        model.train(was_training)
    return ids
