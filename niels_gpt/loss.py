"""Cross-entropy over the targets that count."""

from __future__ import annotations

import torch
from torch.nn import functional as F

IGNORE_INDEX = -100


def loss_fn(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of logits (B, T, V) at the targets y (B, T) that are not -100."""
    if bool((y == IGNORE_INDEX).all()):
        raise ValueError("the batch has no supervised target: every y is -100, so there is no loss to take")
    return F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=IGNORE_INDEX)
