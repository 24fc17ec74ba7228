"""Rotary position embedding on a GPU: queries, keys and values out of one matrix product, and their gradients back
into one.

The product's bias is added, and the bias's gradient summed, on the way: the numbers are in registers anyway.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn
from torch.nn import functional as F

_PROGRAMS = 1024  # keep a GPU busy; backward each sums its share of the bias's gradient


def project_and_rotate(
    qkv: nn.Linear, x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, *, H: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q and k, rotated, and v of x (B, T, C), (B, H, T, D) each. sin and cos begin at position 0."""
    product = F.linear(x, qkv.weight)
    # Heads and positions are transposed out here: a compiled gradient comes in the layout of the function's output,
    # and a transposed one would be copied.
    q, k, v = (part.transpose(1, 2) for part in _Rotation.apply(product, qkv.bias, sin, cos, H))
    return q, k, v


class _Rotation(torch.autograd.Function):
    """One pass over memory each way. The gradient that torch.compile makes by itself takes two to six times as long."""

    @staticmethod
    def forward(
        ctx: Any, qkv: torch.Tensor, bias: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, H: int
    ) -> tuple[torch.Tensor, ...]:
        B, T, C3 = qkv.shape
        C = C3 // 3
        ctx.save_for_backward(sin, cos)
        out = torch.empty((3, B, T, H, C // H), device=qkv.device, dtype=qkv.dtype)
        parts = [part.view(B, T, H, C // H) for part in qkv.split(C, dim=-1)]
        _rotate(parts, out, bias, sin, cos, rows=(C3, C), part=B * T * C, backward=False)
        return out[0], out[1], out[2]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        sin, cos = ctx.saved_tensors
        B, T, H, D = grads[0].shape
        C = H * D
        grad = torch.empty((B, T, 3 * C), device=sin.device, dtype=grads[0].dtype)
        sums = torch.empty((min(_PROGRAMS, B * T), 3 * C), device=sin.device)
        _rotate([g.contiguous() for g in grads], grad, sums, sin, cos, rows=(C, 3 * C), part=C, backward=True)
        return grad, sums.sum(0), None, None, None


def _rotate(
    parts: list[torch.Tensor],
    out: torch.Tensor,
    bias: torch.Tensor,
    sin: torch.Tensor,
    cos: torch.Tensor,
    *,
    rows: tuple[int, int],
    part: int,
    backward: bool,
) -> None:
    """q, k, v (B, T, H, D) into out. The stride of a token is rows[0] in them and rows[1] in out, where one part begins
    `part` numbers after another.

    Forward `bias` is added; backward it takes each program's sums.
    """
    B, T, H, D = parts[0].shape
    block = triton.next_power_of_2(H * D)
    tokens = max(2, 1024 // block)  # that a program holds at a time
    programs = len(bias) if backward else triton.cdiv(B * T, tokens)
    rounds = triton.cdiv(B * T, tokens * programs)
    _kernel[(programs, 3)](
        *parts, out, bias, sin, cos, B * T, T, H * D, *rows, part,
        D=D, TOKENS=tokens, ROUNDS=rounds, BLOCK=block, BACKWARD=backward, num_warps=max(1, block // 256),
    )  # fmt: skip


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    q, k, v, out, bias, sin, cos, N, T, C, row_in, row_out, part,
    D: tl.constexpr, TOKENS: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    program, which = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    direction = -1.0 if BACKWARD else 1.0
    sums = tl.zeros((BLOCK,), tl.float32)
    for i in range(ROUNDS):
        token = ((program * ROUNDS + i) * TOKENS + tl.arange(0, TOKENS))[:, None]
        inside = (column < C)[None, :] & (token < N)
        offset = token * row_in + column[None, :]
        if which == 0:
            x = tl.load(q + offset, mask=inside, other=0.0)
        elif which == 1:
            x = tl.load(k + offset, mask=inside, other=0.0)
        else:
            x = tl.load(v + offset, mask=inside, other=0.0)
        y = x.to(tl.float32)
        if not BACKWARD:
            y += tl.load(bias + which * C + column, mask=column < C, other=0.0)[None, :]
        if which < 2:
            even, odd = tl.split(tl.reshape(y, (TOKENS, BLOCK // 2, 2)))
            angle = (token % T) * (D // 2) + (tl.arange(0, BLOCK // 2) % (D // 2))[None, :]
            s, c = tl.load(sin + angle) * direction, tl.load(cos + angle)
            y = tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), (TOKENS, BLOCK))
        tl.store(out + token * row_out + which * part + column[None, :], y.to(x.dtype), mask=inside)
        if BACKWARD:
            sums += tl.sum(y, axis=0)
    if BACKWARD:
        tl.store(bias + (program * 3 + which) * C + column, sums, mask=column < C)
