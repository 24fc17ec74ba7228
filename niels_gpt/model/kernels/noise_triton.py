"""Seeded noise on a GPU, in one kernel instead of the seventeen that torch makes of it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


def hashed_noise(keys: torch.Tensor, ids: torch.Tensor, *, bits: int) -> torch.Tensor:
    """Keys (b,) and ids, (b, k) or (k,) the same for all -> exponential numbers (b, k): -log of the low bits of
    `rng.mixed(key + id)`, and a half, as a fraction."""
    b, k = len(keys), ids.shape[-1]
    ids, out = ids.contiguous(), torch.empty(b, k, device=keys.device)
    _kernel[(b, triton.cdiv(k, _BLOCK))](keys, ids, out, k, k if ids.dim() > 1 else 0, BITS=bits, BLOCK=_BLOCK)
    return out


@triton.jit
def _kernel(keys, ids, out, k, stride, BITS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < k
    x = (tl.load(keys + row) + tl.load(ids + row * stride + column, mask=inside, other=0)).to(tl.uint64, bitcast=True)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = x ^ (x >> 31)
    fraction = ((x & ((1 << BITS) - 1)).to(tl.float32) + 0.5) * (1.0 / (1 << BITS))
    tl.store(out + row * k + column, -tl.log(fraction), mask=inside)
