"""Randomness: torch's generators alone, and seeds derived from names instead of carried state.

`derive_seed(seed, "batch", n)` is what makes batch n a pure function of (seed, n): a run can stop anywhere, and to
resume it only has to know the number of the next step.
"""

from __future__ import annotations

import hashlib

import torch

# Odd constants of a well-known hash: any that mix would do, but these are part of what a run's numbers depend on.
_ODD = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def set_seed(seed: int) -> None:
    """Seed torch's default generators. Nothing draws from `random` or numpy, but for the order of what is read:
    oasst1's trees are shuffled by `random.Random(seed)`, streams of the hub by its own library."""
    torch.manual_seed(seed)


def make_generator(seed: int, device: str | None = None) -> torch.Generator:
    """A generator of its own, so that a draw here never moves a draw elsewhere."""
    return torch.Generator(device=device or "cpu").manual_seed(seed)


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on every argument and on nothing else."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def mixed(x: torch.Tensor) -> torch.Tensor:
    """64 bits of which every one depends on every one of x, an int64."""
    for shift, odd in ((30, _ODD[0]), (27, _ODD[1])):
        x = (x ^ (x >> shift & (1 << (64 - shift)) - 1)) * odd
    return x ^ (x >> 31 & (1 << 33) - 1)
