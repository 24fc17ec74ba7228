"""The norm of a sum on a GPU, in one kernel: for few tokens its time is that of a launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def add_and_norm(
    x: torch.Tensor,
    added: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    centred: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x + added, and its LayerNorm, or where it is not `centred` its RMSNorm: (..., C) each. The norm has the dtype of
    autocast: the matrix product that takes it would cast it to that."""
    C = x.shape[-1]
    x = x.contiguous()
    total = x if added is None else torch.empty_like(x)
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else weight.dtype
    normed = torch.empty(x.shape, dtype=dtype, device=x.device)
    _kernel[(x.numel() // C,)](
        x, x if added is None else added.contiguous(), weight, weight if bias is None else bias, total, normed, C, eps,
        ADDED=added is not None, BIAS=bias is not None, CENTRED=centred, WIDTH=triton.next_power_of_2(C), num_warps=4,
    )  # fmt: skip
    return total, normed


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
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
