"""Random number generators: each is made here from a seed, and seeds are derived from names, not from RNG state.

docs/architecture.md says which numbers come from which generator, and why. The datasets library shuffles what it
streams from the hub by itself.

`derive_seed(seed, "batch", n)` makes batch n a pure function of (seed, n), so a run can stop at any step and needs
only the number of the next step to resume.
"""

import hashlib
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", "torch.Tensor", np.ndarray)

# splitmix64's multipliers as int64. Other odd constants would mix as well, but changing them changes every run.
_ODD = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def set_seed(seed: int) -> None:
    """Seed torch's default generators."""
    import torch

    torch.manual_seed(seed)


def make_generator(seed: int, device: str | None = None) -> "torch.Generator":
    """Return a new torch generator, independent of all others."""
    import torch

    return torch.Generator(device=device or "cpu").manual_seed(seed)


def numpy_generator(seed: int) -> np.random.Generator:
    """Return a new numpy generator (PCG64), independent of all others."""
    return np.random.default_rng(seed)


def uniform_numbers(shape: tuple[int, ...], *, seed: int) -> np.ndarray:
    """Return floats in [0, 1), equal to those of `random.Random(seed)` for seeds from 2**32 to 2**64 - 1."""
    return np.random.RandomState([seed % 2**32, seed >> 32]).random_sample(shape)


def permutation(n: int, seed: int) -> list[int]:
    """Return `torch.randperm(n)` for the seed, without importing torch.

    Fisher-Yates: each item is swapped with itself or a later one, chosen by the next 32 bits of MT19937. As in torch,
    only the lowest 32 bits of the seed count.
    """
    if n >= 2**32 // 20:  # from this size on torch uses 64 random bits per item
        raise ValueError(f"{n:,} documents are too many for a random split: use split by: hash")
    bits = np.random.RandomState(seed % 2**32).randint(0, 2**32, size=n, dtype=np.uint32)
    behind = (bits[: n - 1] % (n - np.arange(n - 1))).tolist()
    order = list(range(n))
    for i, steps in enumerate(behind):
        order[i], order[i + steps] = order[i + steps], order[i]
    return order


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that is a hash (SHA-256) of all arguments."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def mixed(x: Array) -> Array:
    """Apply splitmix64's finalizer to int64s: every bit of the result depends on every bit of x.

    Right shifts of int64 are arithmetic in torch and numpy, so masks clear the copies of the sign bit.
    """
    for shift, odd in ((30, _ODD[0]), (27, _ODD[1])):
        x = (x ^ (x >> shift & (1 << (64 - shift)) - 1)) * odd
    return x ^ (x >> 31 & (1 << 33) - 1)
