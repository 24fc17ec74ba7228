"""Text from a model, one token at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from niels_gpt.chat_template import extract_assistant_reply, format_prompt
from niels_gpt.eval import inference
from niels_gpt.model.gpt import GPT
from niels_gpt.tokenizer import Tokenizer, decode, encode


def top_k_filter(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Keep exactly the k largest of the last dimension (ties are broken, not kept); the rest becomes -inf."""
    if k < 1:
        raise ValueError(f"top_k must be at least 1, got {k}")
    kept = logits.topk(min(k, logits.shape[-1]), dim=-1)
    return torch.full_like(logits, float("-inf")).scatter(-1, kept.indices, kept.values)


def sample_next_token(
    logits_1d: torch.Tensor,
    *,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator | None = None,
) -> int:
    """One id drawn from softmax(logits / temperature) over the top k; temperature 0 takes the largest."""
    if temperature < 0:
        raise ValueError(f"temperature must be >= 0, got {temperature}")
    if temperature == 0:
        return int(logits_1d.argmax())
    logits = logits_1d.float() if top_k is None else top_k_filter(logits_1d.float(), top_k)
    # The largest logit is taken off first: a tiny temperature must not overflow to inf - inf.
    probabilities = ((logits - logits.max()) / temperature).softmax(dim=-1)
    return int(torch.multinomial(probabilities.cpu(), 1, generator=generator))


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
    """The prompt and its continuation. Without a tokenizer text is bytes, V=256; with one, its end-of-turn id stops.

    Each forward sees the last T ids, at positions 0..len-1; what lies further back is forgotten.
    """
    ids = encode(prompt_text).tolist() if tokenizer is None else tokenizer.encode(prompt_text)
    stop = None if tokenizer is None else tokenizer.special_token_ids()["eot"]
    ids = generate_ids(
        model,
        ids,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        stop=stop,
        generator=generator,
    )
    return decode(torch.tensor(ids)) if tokenizer is None else tokenizer.decode(ids)


def generate_reply(
    model: GPT,
    messages: Sequence[Mapping[str, str]],
    tokenizer: Tokenizer,
    *,
    max_new_tokens: int,
    temperature: float = 0.9,
    top_k: int | None = 50,
    generator: torch.Generator | None = None,
) -> str:
    """What a fine-tuned model answers to a chat."""
    ids = generate_ids(
        model,
        format_prompt(tokenizer, messages),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        stop=tokenizer.special_token_ids()["eot"],
        generator=generator,
    )
    return tokenizer.decode(extract_assistant_reply(tokenizer, ids))


def generate_ids(
    model: GPT,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    stop: int | None,
    generator: torch.Generator | None,
) -> list[int]:
    """The prompt's ids and those drawn after it, up to `stop` (which is not among them) or `max_new_tokens`."""
    ids = list(prompt)
    if not ids:
        raise ValueError("the prompt is empty: give the model at least one character to go on from")
    device = model.tok_emb.weight.device
    with inference(model):
        for _ in range(max_new_tokens):
            window = torch.tensor([ids[-model.cfg.T :]], dtype=torch.int64, device=device)
            token = sample_next_token(model(window)[0, -1], temperature=temperature, top_k=top_k, generator=generator)
            if token == stop:
                break
            ids.append(token)
    return ids
