"""Dropout whose masks depend on a key of each row and on the place in the model, and on nothing else.

A mask drawn from a generator depends on how many rows are drawn for together: micro-batches and ranks would
each train another model. Here every bit of a mask is a hash of (key, place, index), the same on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from niels_gpt.rng import mixed

# Odd constants of a well-known hash: any that mix would do, but these are part of what a run's numbers depend on.
_ODD = (0x7FEB352D, 0x846CA68B - (1 << 32))


@dataclass(frozen=True, eq=False)  # torch.compile would hash it
class RowDropout:
    """Dropout of one forward pass. `keys` (B,) int64 has one for each row; None is no dropout."""

    p: float
    keys: torch.Tensor | None

    def on(self, h: torch.Tensor, *, place: int) -> torch.Tensor:
        """h (B, ...) with a fraction `p` of its elements 0 and the others enlarged by as much."""
        return h if self.keys is None else self._masked(h, h.shape[1:], place)

    def on_vectors(self, h: torch.Tensor, *, place: int) -> torch.Tensor:
        """The same for whole vectors, the last dimension of h."""
        return h if self.keys is None else self._masked(h, (*h.shape[1:-1], 1), place)

    def _masked(self, h: torch.Tensor, shape: tuple[int, ...], place: int) -> torch.Tensor:
        assert self.keys is not None
        dropped = dropout_mask(self.keys, place=place, count=math.prod(shape), p=self.p)
        factors = torch.where(dropped, 0.0, 1 / (1 - self.p))  # in float32, also where h is coarser
        return (h * factors.view(-1, *shape)).to(h.dtype)


NO_DROPOUT = RowDropout(0.0, None)


def module_dropout(module: nn.Module, h: torch.Tensor, p: float, *, keys: torch.Tensor | None = None) -> RowDropout:
    """Return the dropout of a module called on h (B, ...): none outside training.

    Without `keys`, sample them from torch's default generator.
    """
    if not module.training or not p:
        return NO_DROPOUT
    return RowDropout(p, torch.randint(1 << 62, (len(h),), device=h.device) if keys is None else keys)


def dropout_mask(keys: torch.Tensor, *, place: int, count: int, p: float) -> torch.Tensor:
    """Which elements are dropped: (B, count) booleans, each true with probability `p`."""
    row = mixed(keys + (place << 40))[:, None]  # keys of rows are neighbours
    first, second = (row >> 32).int(), (row << 32 >> 32).int()
    x = torch.arange(count, dtype=torch.int32, device=keys.device) ^ first
    x = x * _ODD[0]
    x = x ^ (x >> 15 & 0x1FFFF)
    x = (x ^ second) * _ODD[1]
    return x < round(p * (1 << 32)) - (1 << 31)
