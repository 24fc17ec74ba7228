"""Randomness: every generator is made here, from a seed, and seeds are derived from names instead of carried state.

- `make_generator`, torch's: weights, batches, dropout, sampling of text.
- `permutation`, the numbers of torch.randperm computed by numpy: splits, dolly's order, the tokenizer's sample. Their
  stages need nothing else of torch, which takes seconds to import.
- `numpy_generator`, numpy's PCG64: passages, bootstrap resamples and canary positions of the privacy checks, which work
  on numpy arrays; torch cannot sample multinomial counts.
- `uniform_numbers`, numpy's MT19937: the words of canaries.

Two orders are made elsewhere: data/oasst1.py shuffles trees by `random.Random(seed)`, which its specification
prescribes, and the datasets library shuffles what it streams from the hub.

`derive_seed(seed, "batch", n)` is what makes batch n a pure function of (seed, n): a run can stop anywhere, and to
resume it only has to know the number of the next step.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", "torch.Tensor", np.ndarray)

# splitmix64's: other odd constants would mix as well, but the numbers of a run depend on these.
_ODD = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def set_seed(seed: int) -> None:
    """Seed torch's default generators."""
    import torch

    torch.manual_seed(seed)


def make_generator(seed: int, device: str | None = None) -> torch.Generator:
    """Return a torch generator of its own, so that a draw here never moves a draw elsewhere."""
    import torch

    return torch.Generator(device=device or "cpu").manual_seed(seed)


def numpy_generator(seed: int) -> np.random.Generator:
    """Return a numpy generator (PCG64) of its own."""
    return np.random.default_rng(seed)


def uniform_numbers(shape: tuple[int, ...], *, seed: int) -> np.ndarray:
    """Return floats in [0, 1): those of Python's `random.Random(seed)`, for a seed from 2**32 to 2**64 - 1."""
    return np.random.RandomState([seed % 2**32, seed >> 32]).random_sample(shape)


def permutation(n: int, seed: int) -> list[int]:
    """Return what torch.randperm gives for the seed, without importing torch.

    It swaps each item with one behind it, by the next 32 bits of MT19937; a seed counts by its lowest 32 bits.
    """
    if n >= 2**32 // 20:  # from there on torch takes 64 bits
        raise ValueError(f"{n:,} documents are too many to draw from: split by: hash")
    bits = np.random.RandomState(seed % 2**32).randint(0, 2**32, size=n, dtype=np.uint32)
    behind = (bits[: n - 1] % (n - np.arange(n - 1))).tolist()
    order = list(range(n))
    for i, steps in enumerate(behind):
        order[i], order[i + steps] = order[i + steps], order[i]
    return order


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that depends on every argument and on nothing else."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def mixed(x: Array) -> Array:
    """Return splitmix64's finalizer of int64s: every bit of the result depends on every bit of x.

    Neither torch nor int64 has a logical shift: the masks clear the copies of the sign bit.
    """
    for shift, odd in ((30, _ODD[0]), (27, _ODD[1])):
        x = (x ^ (x >> shift & (1 << (64 - shift)) - 1)) * odd
    return x ^ (x >> 31 & (1 << 33) - 1)
