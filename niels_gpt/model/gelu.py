"""GELU, exact; on a GPU with a cheaper error function than the library's."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F


def gelu(x: torch.Tensor) -> torch.Tensor:
    """x * P(N(0, 1) < x)."""
    if torch.compiler.is_compiling() and x.is_cuda:
        out: torch.Tensor = _Gelu.apply(x)
        return out
    return F.gelu(x)


class _Gelu(torch.autograd.Function):
    """The same function to 3e-7. With the library's erf, arithmetic and not memory is what takes the time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        f = x.float()
        return (f * _probability_below(f)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        f = x.float()
        density = torch.exp(-0.5 * f * f) / math.sqrt(2 * math.pi)
        return (grads[0].float() * (_probability_below(f) + f * density)).to(x.dtype)


def _probability_below(x: torch.Tensor) -> torch.Tensor:
    """P(N(0, 1) < x). The logarithm of the tail beyond |x| is nearly a parabola: this polynomial of it, fitted for the
    smallest largest error up to 6.5 (beyond, the tail is under 1e-10), takes one exponential and no division."""
    z = x.abs().clamp(max=6.5)
    log_tail = z * (5.455323799e-03 + z * (-4.875561463e-04 + z * 1.760413599e-05))
    log_tail = -6.931467568e-01 + z * (-7.979048428e-01 + z * (-3.181509844e-01 + z * (-3.680463048e-02 + log_tail)))
    tail = torch.exp(log_tail)
    return torch.where(x < 0, tail, 1 - tail)
