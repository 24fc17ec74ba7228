"""Where a row's randomness comes from: an exponential number for every id that can be drawn, anew for each draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from niels_gpt.model.kernels import choice
from niels_gpt.rng import derive_seed, mixed

FAR = 0x1E3779B97F4A7C15  # from one key to the next, so that of the next draw no id is near one of this
_BITS = 23  # so that a half more than any of them is a float32 of its own


@dataclass(frozen=True)
class GeneratorNoise:
    """The V numbers that `torch.multinomial` would take from a generator; from torch's own where there is none."""

    generator: torch.Generator | None = None

    def fill(self, row: torch.Tensor) -> None:
        """The next V, into (V,) on the CPU."""
        row.exponential_(generator=self.generator)


class SeededNoise:
    """Numbers that are a hash of the seed, of how many were drawn before, and of the id.

    They are the same on every device, and are made there, of those ids alone that can be drawn.
    """

    def __init__(self, seed: int) -> None:
        self._key = derive_seed(seed, "noise")

    def next_key(self) -> int:
        """What the numbers of the next draw depend on, an int64."""
        self._key = following(self._key)
        return self._key


def following(key: int) -> int:
    """The key of the next draw after that of this one."""
    return (key + FAR + (1 << 63)) % (1 << 64) - (1 << 63)


Source = GeneratorNoise | SeededNoise


@dataclass(frozen=True)
class Drawn:
    """The numbers of B rows for one draw: those of generators (B, V), or the keys (B,) of those that are hashed. Where
    both are there, rows with a key of 0 are from generators."""

    V: int
    numbers: torch.Tensor | None = None
    keys: torch.Tensor | None = None

    def of(self, rows: torch.Tensor | slice, ids: torch.Tensor | None) -> torch.Tensor:
        """In each of these b rows of its ids, (b, k); of all V of them where that is None."""
        if self.keys is None:
            return self._from_generators(rows, ids)
        keys = self.keys[rows][:, None]
        each = torch.arange(self.V, device=keys.device) if ids is None else ids
        hashed = _hashed(keys, each)
        return hashed if self.numbers is None else torch.where(keys == 0, self._from_generators(rows, ids), hashed)

    def _from_generators(self, rows: torch.Tensor | slice, ids: torch.Tensor | None) -> torch.Tensor:
        assert self.numbers is not None
        numbers = self.numbers[rows]
        return numbers if ids is None else numbers.gather(-1, ids)


def _hashed(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    kernel = choice.hashed_noise(keys)
    if kernel is not None:
        return kernel(keys[:, 0], ids, bits=_BITS)
    bits = mixed(keys + ids) & (1 << _BITS) - 1
    return -((bits + 0.5) * 0.5**_BITS).log()


class Noise:
    """What is drawn with, of all rows of a cache, where some have generators."""

    def __init__(self, *, rows: int, V: int, device: torch.device) -> None:
        self._shape, self._device = (rows, V), device
        self._numbers: torch.Tensor | None = None  # in the CPU's memory

    def drawn(self, sources: Mapping[int, Source], *, rows: int) -> Drawn:
        """For one draw of the first rows: new numbers for those that have a source here."""
        numbers, keys = None, next_keys(sources, rows=rows)
        for row, source in sources.items():
            if isinstance(source, GeneratorNoise):
                numbers = self._numbers = torch.ones(self._shape) if self._numbers is None else self._numbers
                source.fill(numbers[row])
        return Drawn(
            self._shape[1],
            numbers=None if numbers is None else numbers[:rows].to(self._device),
            keys=torch.tensor(keys, device=self._device) if numbers is None or any(keys) else None,
        )


def next_keys(sources: Mapping[int, Source], *, rows: int) -> list[int]:
    """Of rows with a seed; 0 of all others."""
    keys = [0] * rows
    for row, source in sources.items():
        if isinstance(source, SeededNoise):
            keys[row] = source.next_key()
    return keys
