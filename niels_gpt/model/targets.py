"""Targets of the cross-entropy loss: which of them count."""

from __future__ import annotations

import torch

IGNORE_INDEX = -100  # a target that does not count


def count_targets(y: torch.Tensor) -> torch.Tensor:
    """How many targets count, a 0-d tensor; a batch without any is refused."""
    return some_targets((y != IGNORE_INDEX).sum())


def some_targets(count: torch.Tensor) -> torch.Tensor:
    """That many targets, if there is one."""
    if not count:
        raise ValueError("the batch has no supervised target: every y is -100, so there is no loss to take")
    return count
