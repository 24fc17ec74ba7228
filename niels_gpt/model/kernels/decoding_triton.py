"""Triton kernels for decoding: attention of one new token per row, the norm of a sum, and seeded noise."""

import math

import torch
import triton
import triton.language as tl

# One kernel rotates q and k of one new token per row, stores k and v in the row's KV cache, and attends to it. Each row
# reads exactly its own tokens, whatever the lengths of its neighbours. As in FlashAttention the softmax is computed
# online: a running maximum and sum rescale the partial result at every block of keys.

_NUMBERS = 16384  # elements of keys that a program holds at a time


def attend_to_cache(
    heads: torch.Tensor, kv: torch.Tensor, places: torch.Tensor, rotations: torch.Tensor, *, T: int
) -> torch.Tensor:
    """Store k and v of one new token per row in the cache and return its attention, (b, 1, H, D).

    `heads` (b, 1, H + 2K, D) are queries, keys and values, `kv` (b, 2K, P, D) the rows of the cache, `places` the b
    positions, `rotations` the b*D/2 complex rotations there. A row at position T is inactive: its cache is not read,
    and its key and value go to the dummy position T.
    """
    b, _, both, D = heads.shape
    K = kv.shape[1] // 2
    H = both - 2 * K
    heads, out = heads.contiguous(), heads.new_empty(b, 1, H, D)
    width = triton.next_power_of_2(D)
    _attention_kernel[(b, H)](
        heads, kv, torch.view_as_real(rotations), places, out, 1 / math.sqrt(D), T,
        kv.stride(0), kv.stride(1), H=H, K=K, D=D, WIDTH=width, KEYS=max(16, _NUMBERS // width), num_warps=8,
    )  # fmt: skip
    return out


@triton.jit
def _attention_kernel(  # type: ignore[no-untyped-def]
    heads, kv, rotations, places, out, scale, T, row_stride, head_stride,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, WIDTH)
    inside = d < D
    place = tl.load(places + row)
    cos = tl.load(rotations + row * D + d // 2 * 2, mask=inside, other=0.0)
    sin = tl.load(rotations + row * D + d // 2 * 2 + 1, mask=inside, other=0.0)
    sin = tl.where(d % 2 == 0, -sin, sin)
    # Heads of a group share keys and values. Each stores the same numbers in the same place.
    group = head // (H // K)
    new = heads + row * (H + 2 * K) * D + head * D
    new_kv = heads + row * (H + 2 * K) * D + (H + group) * D
    # RoPE: each element is combined with the other of its pair, at index d ^ 1.
    q = tl.load(new + d, mask=inside, other=0.0).to(tl.float32) * cos
    q += tl.load(new + (d ^ 1), mask=inside, other=0.0).to(tl.float32) * sin
    k = tl.load(new_kv + d, mask=inside, other=0.0).to(tl.float32) * cos
    k += tl.load(new_kv + (d ^ 1), mask=inside, other=0.0).to(tl.float32) * sin
    v = tl.load(new_kv + K * D + d, mask=inside, other=0.0)
    keys = kv + row * row_stride + group * head_stride
    values = keys + K * head_stride
    kept = k.to(kv.dtype.element_ty)
    tl.store(keys + place * D + d, kept, mask=inside)
    tl.store(values + place * D + d, v.to(kv.dtype.element_ty), mask=inside)
    # Start with the new token itself, so that the running maximum is finite from the beginning.
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


def add_and_norm(
    x: torch.Tensor,
    added: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    centred: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x + added and its LayerNorm (RMSNorm if not `centred`), (..., C) each.

    The norm is in autocast's dtype, to which the next matrix product would cast it anyway.
    """
    C = x.shape[-1]
    x = x.contiguous()
    total = x if added is None else torch.empty_like(x)
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else weight.dtype
    normed = torch.empty(x.shape, dtype=dtype, device=x.device)
    _norm_kernel[(x.numel() // C,)](
        x, x if added is None else added.contiguous(), weight, weight if bias is None else bias, total, normed, C, eps,
        ADDED=added is not None, BIAS=bias is not None, CENTRED=centred, WIDTH=triton.next_power_of_2(C), num_warps=4,
    )  # fmt: skip
    return total, normed


@triton.jit
def _norm_kernel(  # type: ignore[no-untyped-def]
    x, added, weight, bias, total, normed, C, eps,
    ADDED: tl.constexpr, BIAS: tl.constexpr, CENTRED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, WIDTH)
    inside = c < C
    h = tl.load(x + row * C + c, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        h += tl.load(added + row * C + c, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row * C + c, h.to(total.dtype.element_ty), mask=inside)
    if CENTRED:
        h = tl.where(inside, h - tl.sum(h, axis=0) / C, 0.0)
    h *= 1.0 / tl.sqrt(tl.sum(h * h, axis=0) / C + eps)
    h *= tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        h += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * C + c, h.to(normed.dtype.element_ty), mask=inside)


_BLOCK = 1024  # ids that a program computes noise for


def hashed_noise(keys: torch.Tensor, ids: torch.Tensor, *, bits: int) -> torch.Tensor:
    """Return exponential noise (b, k) for keys (b,) and ids (b, k), or (k,) shared by all rows.

    It is -log((u + 0.5) / 2**bits), u being the lowest `bits` bits of `rng.mixed(key + id)`.
    """
    b, k = len(keys), ids.shape[-1]
    ids, out = ids.contiguous(), torch.empty(b, k, device=keys.device)
    _noise_kernel[(b, triton.cdiv(k, _BLOCK))](keys, ids, out, k, k if ids.dim() > 1 else 0, BITS=bits, BLOCK=_BLOCK)
    return out


@triton.jit
def _noise_kernel(keys, ids, out, k, stride, BITS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < k
    x = (tl.load(keys + row) + tl.load(ids + row * stride + column, mask=inside, other=0)).to(tl.uint64, bitcast=True)
    # splitmix64's finalizer, as in rng.mixed.
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = x ^ (x >> 31)
    fraction = ((x & ((1 << BITS) - 1)).to(tl.float32) + 0.5) * (1.0 / (1 << BITS))
    tl.store(out + row * k + column, -tl.log(fraction), mask=inside)
