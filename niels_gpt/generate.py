"""Sampling text from a model, one token at a time, with a KV cache: a new token costs one token, not the whole text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT
from niels_gpt.tokenizer import decode, encode
from niels_gpt.tokenizer.vocabulary import Tokenizer


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn: temperature, top-k (of the k likeliest), top-p (of the fewest that make up p)."""

    temperature: float = 0.9
    top_k: int | None = 50
    top_p: float | None = None


def top_k_filter(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Keep exactly the k largest of the last dimension (ties are broken, not kept); the rest becomes -inf."""
    if k < 1:
        raise ValueError(f"top_k must be at least 1, got {k}")
    kept = logits.topk(min(k, logits.shape[-1]), dim=-1)
    return torch.full_like(logits, float("-inf")).scatter(-1, kept.indices, kept.values)


def top_p_filter(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep the fewest of the last dimension whose probabilities reach p, the likeliest first; the rest becomes -inf."""
    if not 0.0 < p <= 1.0:
        raise ValueError(f"top_p must be in (0, 1], got {p}")
    if p == 1.0:
        return logits  # sums of float32 may reach 1 before the last
    ordered = logits.sort(dim=-1, descending=True)
    probabilities = ordered.values.softmax(dim=-1)
    dropped = probabilities.cumsum(dim=-1) - probabilities >= p
    dropped[..., 0] = False  # the likeliest stays, also where p is so small that a float32 has no room for it
    kept = ordered.values.masked_fill(dropped, float("-inf"))
    return torch.full_like(logits, float("-inf")).scatter(-1, ordered.indices, kept)


def sample_next_token(
    logits_1d: torch.Tensor,
    *,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator | None = None,
    top_p: float | None = None,
) -> int:
    """One id drawn from softmax(logits / temperature) over the top k and p; temperature 0 takes the largest."""
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be >= 0 and finite, got {temperature}")
    if temperature == 0:
        return int(logits_1d.argmax())
    logits = logits_1d.float().cpu()
    if top_k is not None:
        logits = top_k_filter(logits, top_k)
    # The largest logit is taken off first: a tiny temperature must not overflow to inf - inf. One that a float32 has no
    # room for would be 0 or inf to torch, and 0 / 0 or -inf / inf is no number.
    room = torch.finfo(logits.dtype)
    logits = (logits - logits.max()) / min(max(temperature, room.tiny), room.max)
    if top_p is not None:
        logits = top_p_filter(logits, top_p)
    return int(torch.multinomial(logits.softmax(dim=-1), 1, generator=generator))


def generate(
    model: GPT,
    prompt_text: str,
    *,
    max_new_tokens: int,
    temperature: float = 0.9,
    top_k: int | None = 50,
    top_p: float | None = None,
    tokenizer: Tokenizer | None = None,
    generator: torch.Generator | None = None,
) -> str:
    """The prompt and its continuation. Without a tokenizer text is bytes, V=256; with one, its end-of-turn id stops.

    Each token sees the last T ids, at positions 0..len-1; what lies further back is forgotten.
    """
    ids = encode(prompt_text).tolist() if tokenizer is None else tokenizer.encode(prompt_text)
    ids = generate_ids(
        model,
        ids,
        max_new_tokens=max_new_tokens,
        sampling=Sampling(temperature, top_k, top_p),
        stop=None if tokenizer is None else tokenizer.special_token_ids()["eot"],
        generator=generator,
    )
    return decode(torch.tensor(ids)) if tokenizer is None else tokenizer.decode(ids)


def generate_ids(
    model: GPT,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stop: int | None = None,
    generator: torch.Generator | None = None,
) -> list[int]:
    """The prompt's ids and those drawn after it, up to `stop` (which is not among them) or `max_new_tokens`."""
    steps = stream_ids(
        model, [prompt], max_new_tokens=max_new_tokens, sampling=sampling, stop=stop, generators=[generator]
    )
    return [*prompt, *(token for (token,) in steps if token is not None)]


def stream_ids(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stop: int | None = None,
    generators: Sequence[torch.Generator | None] | None = None,
) -> Iterator[list[int | None]]:
    """For every step the next id of every prompt, None for those that have reached `stop`; ends when all have.

    Each prompt has a generator of its own, so that what it gets does not depend on its neighbours in the batch.
    """
    if not all(prompts):
        raise ValueError("the prompt is empty: give the model at least one character to go on from")
    generators = generators or [None] * len(prompts)
    was_training = model.training
    model.eval()
    try:
        yield from _steps(_Sequences(model, prompts), generators, max_new_tokens, sampling=sampling, stop=stop)
    finally:
        model.train(was_training)


def _steps(
    sequences: _Sequences,
    generators: Sequence[torch.Generator | None],
    max_new_tokens: int,
    *,
    sampling: Sampling,
    stop: int | None,
) -> Iterator[list[int | None]]:
    running = [True] * len(generators)
    for _ in range(max_new_tokens):
        logits = sequences.next_logits()
        tokens: list[int | None] = []
        for row, generator in enumerate(generators):
            token = None
            if running[row]:
                token = sample_next_token(logits[row], **vars(sampling), generator=generator)
                running[row] = token != stop
            tokens.append(token if running[row] else None)
        if not any(running):
            return
        yield tokens
        sequences.append([0 if token is None else token for token in tokens])


class _Sequences:
    """A batch of sequences that grow by a token at a time, with a KV cache for as long as they fit the context."""

    def __init__(self, model: GPT, prompts: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._ids = [list(prompt) for prompt in prompts]
        self._device = model.tok_emb.weight.device
        self._decoder = Decoder(model, B=len(prompts))

    def append(self, tokens: Sequence[int]) -> None:
        for ids, token in zip(self._ids, tokens, strict=True):
            ids.append(token)

    def next_logits(self) -> torch.Tensor:
        """(B, V) after the last token of each."""
        T, lengths = self._model.cfg.T, self._decoder.lengths
        full = [row for row, length in enumerate(lengths) if length == T]
        with torch.inference_mode():  # not around the whole stream: it would hold for whoever reads it, too
            if not any(lengths):
                return self._read_prompts()
            if len(full) == len(lengths):
                return self._reread(full)
            # A row that has slid out of the context takes part with any place; its result is replaced.
            self._decoder.truncate([min(length, T - 1) for length in lengths])
            last = torch.tensor([[ids[-1]] for ids in self._ids], device=self._device)
            logits = self._model.logits(self._decoder.extend(last)[:, -1])
            if full:
                logits[full] = self._reread(full)
            return logits

    def _read_prompts(self) -> torch.Tensor:
        windows = [ids[-self._model.cfg.T :] for ids in self._ids]
        lengths = [len(window) for window in windows]
        padded = [window + [0] * (max(lengths) - len(window)) for window in windows]
        hidden = self._decoder.extend(torch.tensor(padded, device=self._device))
        self._decoder.truncate(lengths)
        return self._model.logits(hidden[range(len(lengths)), [length - 1 for length in lengths]])

    def _reread(self, rows: list[int]) -> torch.Tensor:
        """Past the context every position changes with every token, and nothing can be kept: the last T, read anew."""
        windows = torch.tensor([self._ids[row][-self._model.cfg.T :] for row in rows], device=self._device)
        hidden = self._model.hidden(self._model.embed(windows))
        return self._model.logits(hidden[:, -1])
