"""Validation loss on the assistant turns of held-out chats."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.eval.held_out import Part, Score, inference, mean_score, token_losses
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.model.targets import IGNORE_INDEX


def mean_chat_loss(
    model: nn.Module, chats: SFTExampleDataset, rows: np.ndarray, *, B: int, ranks: Ranks = ALONE
) -> float:
    """Return the mean loss in nats/token over the supervised tokens of these chats; ranks share the work."""
    batches = (rows[first : first + B] for first in range(0, len(rows), B))
    shares = [own for batch in batches if len(own := batch[ranks.share(len(batch))])]
    with inference(model):
        losses = torch.cat([_chat_losses(model, chats, own, {})[0] for own in shares]) if shares else torch.empty(0)
    parts = ranks.exchange((float(losses.mean()) if len(losses) else 0.0, len(losses)))
    tokens = sum(count for _, count in parts)
    return sum(mean * (count / tokens) for mean, count in parts)


def score_chats(
    model: nn.Module,
    chats: SFTExampleDataset,
    *,
    token_bytes: np.ndarray,
    B: int,
    max_tokens: int | None,
    quoted: Mapping[int, np.ndarray] | None = None,
) -> Score:
    """Score the assistant's tokens of every chat, or of the first chats with about `max_tokens`; see score_stream.

    `quoted` has, by example, a mark for each token that lies in a quote of training text.
    """
    batches = (np.arange(first, min(first + B, len(chats))) for first in range(0, len(chats), B))
    with inference(model):
        parts = (_chat_losses(model, chats, rows, quoted or {}) for rows in batches)
        return mean_score(parts, token_bytes=token_bytes, max_tokens=max_tokens)


def _chat_losses(
    model: nn.Module, chats: SFTExampleDataset, rows: np.ndarray, quoted: Mapping[int, np.ndarray]
) -> Part:
    x, _, y = chats.examples(rows)
    marks = np.zeros(y.shape, dtype=bool)
    for number, row in enumerate(rows.tolist()):
        own = quoted.get(row, np.empty(0))[1 : y.shape[1] + 1]  # the first token is never a target
        marks[number, : len(own)] = own
    kept = y != IGNORE_INDEX
    return token_losses(model, x, y)[kept].double(), y[kept], torch.from_numpy(marks).to(y.device)[kept]
