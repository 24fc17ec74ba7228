"""Where a row's randomness comes from: V exponential numbers a draw.

A source fills a row of a buffer in the CPU's memory. One that makes its numbers on a GPU, from a seed and a counter,
would be a second kind, for `Noise` to tell apart: it alone knows where numbers come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from niels_gpt.rng import make_generator


class Source(Protocol):
    def fill(self, row: torch.Tensor) -> None:
        """The next V exponential numbers, into (V,) on the CPU."""


@dataclass(frozen=True)
class GeneratorNoise:
    """The numbers that `torch.multinomial` would take from a generator; from torch's own where there is none."""

    generator: torch.Generator | None = None

    def fill(self, row: torch.Tensor) -> None:
        row.exponential_(generator=self.generator)


def seeded(seed: int) -> GeneratorNoise:
    """From a generator of its own."""
    return GeneratorNoise(make_generator(seed))


class Noise:
    """The numbers of all rows for one draw, on the device of the logits."""

    def __init__(self, *, rows: int, V: int, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._drawn = torch.ones(rows, V, pin_memory=cuda)
        self._there = self._drawn.to(device)  # the same memory on a CPU

    def drawn(self, sources: Mapping[int, Source], *, rows: int) -> torch.Tensor:
        """(rows, V), with new numbers in those rows that have a source here."""
        for row, source in sources.items():
            source.fill(self._drawn[row])
        if self._there is not self._drawn:
            self._there[:rows].copy_(self._drawn[:rows], non_blocking=True)
        return self._there[:rows]
