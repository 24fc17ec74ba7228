"""One new token a row on a GPU: rotated, kept, and its look back at the row's KV cache, in one kernel.

A row is as long as its own tokens, whatever the lengths beside it: nothing is masked, and nothing is read in vain.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

_NUMBERS = 16384  # of keys that a program holds at a time


def attend_to_cache(
    heads: torch.Tensor, kv: torch.Tensor, places: torch.Tensor, rotations: torch.Tensor, *, T: int
) -> torch.Tensor:
    """Queries, keys and values (b, 1, 3H, D) of b new tokens, rows of the cache (b, 2H, P, D), the places in them and
    the rotations there, complex, b and b*D/2 of them -> what attention gives, (b, 1, H, D). A row at place T sees
    nothing, and its keys go where nobody looks."""
    b, _, H3, D = heads.shape
    H = H3 // 3
    heads, out = heads.contiguous(), heads.new_empty(b, 1, H, D)
    width = triton.next_power_of_2(D)
    _kernel[(b, H)](
        heads, kv, torch.view_as_real(rotations), places, out, 1 / math.sqrt(D), T,
        kv.stride(0), kv.stride(1), H=H, D=D, WIDTH=width, KEYS=max(16, _NUMBERS // width), num_warps=8,
    )  # fmt: skip
    return out


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    heads, kv, rotations, places, out, scale, T, row_stride, head_stride,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, WIDTH)
    inside = d < D
    place = tl.load(places + row)
    cos = tl.load(rotations + row * D + d // 2 * 2, mask=inside, other=0.0)
    sin = tl.load(rotations + row * D + d // 2 * 2 + 1, mask=inside, other=0.0)
    sin = tl.where(d % 2 == 0, -sin, sin)
    new = heads + row * 3 * H * D + head * D
    # Each number with the other of its pair.
    q = tl.load(new + d, mask=inside, other=0.0).to(tl.float32) * cos
    q += tl.load(new + (d ^ 1), mask=inside, other=0.0).to(tl.float32) * sin
    k = tl.load(new + H * D + d, mask=inside, other=0.0).to(tl.float32) * cos
    k += tl.load(new + H * D + (d ^ 1), mask=inside, other=0.0).to(tl.float32) * sin
    v = tl.load(new + 2 * H * D + d, mask=inside, other=0.0)
    keys = kv + row * row_stride + head * head_stride
    values = keys + H * head_stride
    kept = k.to(kv.dtype.element_ty)
    tl.store(keys + place * D + d, kept, mask=inside)
    tl.store(values + place * D + d, v.to(kv.dtype.element_ty), mask=inside)
    # The new token itself comes first: so there is a largest score from the beginning.
    q *= scale
    largest = tl.sum(q * kept.to(tl.float32), axis=0)
    total = 1.0
    seen = v.to(tl.float32)
    for start in range(0, tl.where(place < T, place, 0), KEYS):
        n = start + tl.arange(0, KEYS)
        there = (n < place)[:, None] & inside[None, :]
        at = n.to(tl.int64)[:, None] * D + d[None, :]
        scores = tl.sum(tl.load(keys + at, mask=there, other=0.0).to(tl.float32) * q[None, :], axis=1)
        scores = tl.where(n < place, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=0))
        weights, fading = tl.exp(scores - larger), tl.exp(largest - larger)
        block = tl.load(values + at, mask=there, other=0.0).to(tl.float32)
        seen = seen * fading + tl.sum(block * weights[:, None], axis=0)
        total = total * fading + tl.sum(weights, axis=0)
        largest = larger
    tl.store(out + row * H * D + head * D + d, (seen / total).to(v.dtype), mask=inside)
