"""Rotary positions on a GPU: queries, keys and values out of one matrix product, and their gradients back into one."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


def split_and_rotate(
    qkv: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, *, H: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, T, 3C) -> q and k, turned, and v as it is, (B, H, T, D) each; sin and cos hold the positions from 0 on."""
    q, k, v = _Rotation.apply(qkv, sin, cos, H)
    return q, k, v


class _Rotation(torch.autograd.Function):
    """One pass over memory each way. A compiler left to itself takes two to six times as long over the gradient."""

    @staticmethod
    def forward(ctx: Any, qkv: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, H: int) -> tuple[torch.Tensor, ...]:
        B, T, C3 = qkv.shape
        C, D = C3 // 3, C3 // 3 // H
        ctx.save_for_backward(sin, cos)
        heads = [part.view(B, T, H, D).transpose(1, 2) for part in qkv.split(C, dim=-1)]
        out = torch.empty((3, B, T, H, D), device=qkv.device, dtype=qkv.dtype)
        _turn(heads, out, sin, cos, row=C, part=B * T * C, direction=1.0)
        q, k, v = (out[i].transpose(1, 2) for i in range(3))
        return q, k, v

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        sin, cos = ctx.saved_tensors
        B, H, T, D = grads[0].shape
        grad = torch.empty((B, T, 3 * H * D), device=sin.device, dtype=grads[0].dtype)
        _turn(list(grads), grad, sin, cos, row=3 * H * D, part=H * D, direction=-1.0)
        return grad, None, None, None


def _turn(
    heads: list[torch.Tensor],
    out: torch.Tensor,
    sin: torch.Tensor,
    cos: torch.Tensor,
    *,
    row: int,
    part: int,
    direction: float,
) -> None:
    """q, k, v, (B, H, T, D) with any strides but the last, into out: token n's part p begins at n * row + p * part."""
    B, H, T, D = heads[0].shape
    strides = [stride for head in heads for stride in head.stride()[:3]]
    block = triton.next_power_of_2(H * D)
    tokens = max(1, 4096 // block)
    _kernel[(triton.cdiv(B * T, tokens), 3)](
        *heads, out, sin, cos, B * T, T, H * D, *strides, row, part, direction, D=D, TOKENS=tokens, BLOCK=block
    )


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    q, k, v, out, sin, cos, N, T, C, qb, qh, qt, kb, kh, kt, vb, vh, vt, row, part, direction,
    D: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token, which = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None], tl.program_id(1)
    b, t = token // T, token % T
    column = tl.arange(0, BLOCK)[None, :]
    inside = (column < C) & (token < N)
    h, d = column // D, column % D
    if which == 0:
        x = tl.load(q + b * qb + h * qh + t * qt + d, mask=inside)
    elif which == 1:
        x = tl.load(k + b * kb + h * kh + t * kt + d, mask=inside)
    else:
        x = tl.load(v + b * vb + h * vh + t * vt + d, mask=inside)
    if which < 2:
        even, odd = tl.split(tl.reshape(x.to(tl.float32), (TOKENS, BLOCK // 2, 2)))
        angle = t * (D // 2) + tl.arange(0, BLOCK // 2)[None, :] % (D // 2)
        s, c = tl.load(sin + angle) * direction, tl.load(cos + angle)
        x = tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), (TOKENS, BLOCK)).to(x.dtype)
    tl.store(out + token * row + which * part + column, x, mask=inside)
