"""Triton kernels for training: rotary embedding, GELU with bias, and cross-entropy, with their gradients."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn
from torch.nn import functional as F

from niels_gpt.model.targets import IGNORE_INDEX

# Rotary position embedding: splits the qkv product into rotated q, rotated k and v, and joins their gradients into one
# tensor. The same pass adds the bias, or sums its gradient, since the numbers are in registers anyway.

_PROGRAMS = 1024  # enough to keep a GPU busy; in backward each sums its part of the bias gradient


def project_and_rotate(
    qkv: nn.Linear, x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, *, H: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rotated q, rotated k and v of x (B, T, C), (B, H, T, D) each; sin and cos start at position 0."""
    product = F.linear(x, qkv.weight)
    # Transpose heads and positions outside the autograd function: torch.compile passes gradients in the layout of its
    # output, and a transposed one would be copied.
    q, k, v = (part.transpose(1, 2) for part in _Rotation.apply(product, qkv.bias, sin, cos, H))
    return q, k, v


class _Rotation(torch.autograd.Function):
    """Bias and rotation in one pass over memory each way; torch.compile's own gradient takes 2 to 6 times as long."""

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
    """Rotate q and k, and copy v, from `parts` (B, T, H, D) into `out`.

    The stride of a token, in elements, is rows[0] in `parts` and rows[1] in `out`, where q, k and v start `part`
    elements apart. Forward adds `bias`; backward writes each program's sums of the gradient to it.
    """
    B, T, H, D = parts[0].shape
    block = triton.next_power_of_2(H * D)
    tokens = max(2, 1024 // block)  # held by a program at a time
    programs = len(bias) if backward else triton.cdiv(B * T, tokens)
    rounds = triton.cdiv(B * T, tokens * programs)
    _rope_kernel[(programs, 3)](
        *parts, out, bias, sin, cos, B * T, T, H * D, *rows, part,
        D=D, TOKENS=tokens, ROUNDS=rounds, BLOCK=block, BACKWARD=backward, num_warps=max(1, block // 256),
    )  # fmt: skip


@triton.jit
def _rope_kernel(  # type: ignore[no-untyped-def]
    q, k, v, out, bias, sin, cos, N, T, C, row_in, row_out, part,
    D: tl.constexpr, TOKENS: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    program, which = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    direction = -1.0 if BACKWARD else 1.0  # the gradient of a rotation is the opposite rotation
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


_TILE, _COLUMNS = 4, 1024  # rows and columns that a program holds at a time


def project_and_gelu(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Return GELU of linear(x), with an error of at most 3e-7 before rounding to the product's dtype."""
    return _BiasedGelu.apply(F.linear(x, linear.weight), linear.bias)


class _BiasedGelu(torch.autograd.Function):
    """Bias and GELU, opaque to torch.compile, which would recompute GELU for the gradient of the next layer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, bias)
        out = torch.empty_like(x)
        _launch(x, bias, x, out, bias, backward=False)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, bias = ctx.saved_tensors
        out = torch.empty_like(x)
        programs = min(_PROGRAMS, triton.cdiv(x.numel() // len(bias), _TILE))
        sums = torch.empty((programs, len(bias)), device=x.device)
        _launch(x, bias, grads[0].contiguous(), out, sums, backward=True)
        return out, sums.sum(0)


def _launch(
    x: torch.Tensor, bias: torch.Tensor, grad: torch.Tensor, out: torch.Tensor, sums: torch.Tensor, *, backward: bool
) -> None:
    width = len(bias)
    rows, block = x.numel() // width, min(_COLUMNS, triton.next_power_of_2(width))
    programs = len(sums) if backward else triton.cdiv(rows, _TILE)
    rounds = triton.cdiv(rows, _TILE * programs)
    _gelu_kernel[(programs, triton.cdiv(width, block))](
        x, bias, grad, out, sums, rows, width, TILE=_TILE, ROUNDS=rounds, BLOCK=block, BACKWARD=backward
    )


@triton.jit
def _gelu_kernel(  # type: ignore[no-untyped-def]
    x, bias, grad, out, sums, N, width,
    TILE: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(bias + column, mask=column < width, other=0.0)[None, :]
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(ROUNDS):
        row = (program * ROUNDS + i) * TILE + tl.arange(0, TILE)
        inside = (row < N)[:, None] & (column < width)[None, :]
        offset = row[:, None] * width + column[None, :]
        raw = tl.load(x + offset, mask=inside, other=0.0)
        f = raw.to(tl.float32) + b
        # Phi(f), the normal CDF. The log of the tail beyond |f| is nearly a parabola: a minimax polynomial, fitted up
        # to 6.5 (beyond that the tail is below 1e-10), needs one exponential and no division.
        z = tl.minimum(tl.abs(f), 6.5)
        log_tail = z * (5.455323799e-03 + z * (-4.875561463e-04 + z * 1.760413599e-05))
        log_tail = z * (-3.181509844e-01 + z * (-3.680463048e-02 + log_tail))
        tail = tl.exp(-6.931467568e-01 + z * (-7.979048428e-01 + log_tail))
        below = tl.where(f < 0, tail, 1 - tail)
        if BACKWARD:
            slope = below + f * tl.exp(-0.5 * f * f) * 0.3989422804014327
            y = tl.load(grad + offset, mask=inside, other=0.0).to(tl.float32) * slope
            total += tl.sum(y, axis=0)
        else:
            y = f * below
        tl.store(out + offset, y.to(raw.dtype), mask=inside)
    if BACKWARD:
        tl.store(sums + program * width + column, total, mask=column < width)


_WHOLE_ROW = 16384  # largest vocabulary whose row is held in registers and read once
_BLOCK = 4096  # columns at a time of a longer row


def losses_and_grad_(logits: torch.Tensor, y: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Return the loss of each row (rows,) in float32; overwrite logits (rows, V) with the gradient of their sum.

    `logits` are contiguous, and `cap` is that of loss.soft_cap.
    """
    rows, V = logits.shape
    losses = torch.empty(rows, device=logits.device)
    whole = V <= _WHOLE_ROW
    block = triton.next_power_of_2(V) if whole else _BLOCK
    warps = max(1, min(16, block // 512))
    _loss_kernel[(rows,)](
        logits, y, losses, V, IGNORE_INDEX, cap or 1.0,
        BLOCK=block, WHOLE=whole, CAPPED=cap is not None, num_warps=warps,
    )  # fmt: skip
    return losses


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def _loss_kernel(  # type: ignore[no-untyped-def]
    logits, targets, losses, V, ignored, cap,
    BLOCK: tl.constexpr, WHOLE: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    counted = (target != ignored).to(tl.float32)
    target = tl.where(target == ignored, 0, target)
    start = logits + row * V
    chosen = tl.load(start + target).to(tl.float32)
    if CAPPED:
        chosen = cap * _tanh(chosen / cap)
    columns = tl.arange(0, BLOCK)
    if WHOLE:
        x = tl.load(start + columns, mask=columns < V, other=-float("inf"))
        largest = tl.max(x).to(tl.float32)
        if CAPPED:
            bent = _tanh(x.to(tl.float32) / cap)
            largest = tl.max(bent) * cap
            total = tl.sum(tl.where(columns < V, tl.exp(bent * cap - largest), 0.0))
            grad = (tl.exp(bent * cap - largest) * (1 / total) - (columns == target).to(tl.float32)) * counted
            grad *= 1 - bent * bent
        else:
            total = tl.sum(tl.exp(x.to(tl.float32) - largest))
            grad = (tl.exp(x.to(tl.float32) - largest) * (1 / total) - (columns == target).to(tl.float32)) * counted
        tl.store(start + columns, grad.to(logits.dtype.element_ty), mask=columns < V)
    else:
        # Online softmax: a running maximum and sum over blocks of the row.
        largest = -float("inf")
        total = 0.0
        for first in range(0, V, BLOCK):
            here = first + columns
            x = tl.load(start + here, mask=here < V, other=-float("inf")).to(tl.float32)
            if CAPPED:
                x = tl.where(here < V, cap * _tanh(x / cap), -float("inf"))
            larger = tl.maximum(largest, tl.max(x))
            total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger))
            largest = larger
        # Read the row a second time, from the GPU's cache.
        for first in range(0, V, BLOCK):
            here = first + columns
            x = tl.load(start + here, mask=here < V, other=-float("inf")).to(tl.float32)
            slope = 1.0
            if CAPPED:
                bent = _tanh(x / cap)
                x, slope = cap * bent, 1 - bent * bent
            grad = (tl.exp(x - largest) * (1 / total) - (here == target).to(tl.float32)) * counted * slope
            tl.store(start + here, grad.to(logits.dtype.element_ty), mask=here < V)
    tl.store(losses + row, (tl.log(total) + largest - chosen) * counted)
