"""Validation loss on held-out text: on sampled windows (fast, during training) or on every token once (at the end)."""

import gzip
import lzma
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.batching import draw_rows, gather_rows
from niels_gpt.cache.windows import TokenStream, split_targets
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.model.targets import IGNORE_INDEX, count_targets

Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # losses in nats, targets, whether each lies in a quote; flat


@dataclass(frozen=True)
class Score:
    """Mean cross-entropy in nats/token over `tokens` targets, and bits per byte, which compares across tokenizers.

    `quoted_tokens` of the targets lie in quotes of training text; the last two fields are the means over the others,
    None if there are no others.
    """

    nats: float
    bits_per_byte: float
    tokens: int
    quoted_tokens: int
    nats_without_quotes: float | None
    bits_per_byte_without_quotes: float | None

    def stats(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """Return the fields for a table of metrics, those of quotes and their `counts` only if there are any."""
        every = {**vars(self), **counts}
        return every if self.quoted_tokens else {name: every[name] for name in ("nats", "bits_per_byte", "tokens")}


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Disable gradients and dropout inside the context; restore the model's mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def token_losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor, **ids: torch.Tensor) -> torch.Tensor:
    """Return the loss of each token (B, T) in nats, 0 at ignored targets. `ids`: position_ids, segment_ids.

    A model may have `losses`, which returns the same faster than through its logits (`train.step.RecordedModel`).
    """
    losses: Callable[..., torch.Tensor] | None = getattr(model, "losses", None)
    if losses is not None:
        return losses(x, y, **ids)
    logits = model(x, **ids)
    flat = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORE_INDEX, reduction="none")
    return flat.view_as(y)


def mean_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, **ids: torch.Tensor) -> float:
    """Return the mean loss in nats/token over the targets of a batch that are not ignored."""
    return float(token_losses(model, x, y, **ids).double().sum() / count_targets(y))


def evaluate(
    model: nn.Module,
    eval_streams: Mapping[str, bytes | TokenStream],
    *,
    eval_steps: int,
    B: int,
    T: int,
    device: str,
    generator: torch.Generator,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Return the mean loss in nats/token of each stream, over `eval_steps` random batches (B, T).

    If a stream has document boundaries, tokens attend only within their document. Each rank reads and scores its own
    rows of every batch, and all get the same numbers.
    """
    if eval_steps < 1:
        raise ValueError(f"eval_steps must be at least 1, got {eval_steps}")
    losses: dict[str, float] = {}
    rows = ranks.rows(B)
    share = len(range(B)[rows]) / B
    with inference(model):
        for name, stream in eval_streams.items():
            total = 0.0
            for _ in range(eval_steps):
                draw = draw_rows({name: stream}, p={name: 1.0}, B=B, T=T, generator=generator).take(rows)
                tokens, segments = gather_rows({name: stream}, draw, T=T)
                x, y = split_targets(tokens, device=device)
                total += share * mean_loss(model, x, y, **_on_device(segments, device))
            losses[name] = total / eval_steps
    return ranks.summed(losses)


def score_stream(
    model: nn.Module,
    stream: TokenStream,
    *,
    token_bytes: np.ndarray,
    T: int,
    B: int,
    device: str,
    max_tokens: int | None = None,
    quoted: TokenStream | None = None,
) -> Score:
    """Score every token of a stream once, in consecutive windows of T: no sampling, the same number every time.

    `token_bytes` is the number of text bytes of each id. Ids without text (the end of a document) count in nats, not in
    bits per byte. With `max_tokens`, only evenly spaced windows of about that many tokens are scored. `quoted` has a 1
    for each token of the stream that lies in a quote. Documents are separated as in `evaluate`.
    """
    starts = _consecutive_windows(stream, T=T, max_tokens=max_tokens)

    def parts() -> Iterator[Part]:
        for first in range(0, len(starts), B):
            windows = starts[first : first + B]
            x, y = split_targets(torch.from_numpy(stream.gather(windows, T)), device=device)
            segments = stream.segments(windows, T)
            ids = _on_device(None if segments is None else torch.from_numpy(segments), device)
            marks = torch.zeros_like(y) if quoted is None else torch.from_numpy(quoted.gather(windows, T))[:, 1:]
            yield token_losses(model, x, y, **ids).flatten().double(), y.flatten(), marks.flatten().to(device).bool()

    with inference(model):
        return mean_score(parts(), token_bytes=token_bytes)


YARDSTICKS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": lambda text: gzip.compress(text, 9, mtime=0),
    "xz": lambda text: lzma.compress(text, preset=9),
}


def yardstick_bits(
    stream: TokenStream, *, piece: Callable[[int], bytes], T: int, max_tokens: int | None = None
) -> dict[str, float]:
    """Return the bits per byte of compressors, by name, on the text that `score_stream` scores.

    They know no other text. `piece` returns the bytes of an id.
    """
    starts = _consecutive_windows(stream, T=T, max_tokens=max_tokens)
    text = b"".join(map(piece, stream.gather(starts, T)[:, 1:].flatten().tolist()))
    return {name: 8 * len(compress(text)) / max(1, len(text)) for name, compress in YARDSTICKS.items()}


def mean_score(parts: Iterable[Part], *, token_bytes: np.ndarray, max_tokens: int | None = None) -> Score:
    """Return the Score of all parts, up to the one that reaches `max_tokens`."""
    # Rows: all targets, and those outside of quotes. Columns: nats, nats of ids with text, tokens, bytes of text.
    sums = np.zeros((2, 4))
    for losses, targets, quoted in parts:
        lengths = torch.from_numpy(token_bytes).to(targets.device)[targets]
        for row, kept in zip(sums, (torch.ones_like(quoted), ~quoted), strict=True):
            nats, sizes = losses[kept], lengths[kept]
            row += [float(nats.sum()), float(nats[sizes > 0].sum()), len(nats), int(sizes.sum())]
        if max_tokens is not None and sums[0, 2] >= max_tokens:
            break
    tokens, unquoted = sums[:, 2].astype(int).tolist()
    means = (sums[:, 0] / np.maximum(1, sums[:, 2])).tolist()
    bits = (sums[:, 1] / math.log(2) / np.maximum(1, sums[:, 3])).tolist()
    return Score(
        nats=means[0],
        bits_per_byte=bits[0],
        tokens=tokens,
        quoted_tokens=tokens - unquoted,
        nats_without_quotes=means[1] if unquoted else None,
        bits_per_byte_without_quotes=bits[1] if unquoted else None,
    )


def _on_device(segments: torch.Tensor | None, device: str) -> dict[str, torch.Tensor]:
    """Return the keyword arguments for the model: empty without segments, so that any model can be scored."""
    return {} if segments is None else {"segment_ids": segments.to(device)}


def _consecutive_windows(stream: TokenStream, *, T: int, max_tokens: int | None) -> np.ndarray:
    """Return the numbers of the windows that tile each array; a remainder at an array's end is not scored."""
    counts = np.maximum(0, stream.lengths - T)
    firsts = counts.cumsum() - counts
    starts = np.concatenate([np.arange(first, first + count, T) for first, count in zip(firsts, counts, strict=True)])
    wanted = len(starts) if max_tokens is None else max(1, max_tokens // T)
    return starts if wanted >= len(starts) else starts[np.linspace(0, len(starts) - 1, wanted).astype(np.int64)]
