"""Targets of the cross-entropy loss: the index of ignored ones, and counting the others."""

import torch

IGNORE_INDEX = -100  # a target without loss; torch's default


def count_targets(y: torch.Tensor) -> torch.Tensor:
    """Return the number of targets that are not ignored, a 0-d tensor; raise if there is none."""
    return some_targets((y != IGNORE_INDEX).sum())


def some_targets(count: torch.Tensor) -> torch.Tensor:
    """Return `count`, or raise if it is 0."""
    if not count:
        raise ValueError("the batch has no supervised target: every y is -100, so there is no loss to take")
    return count
