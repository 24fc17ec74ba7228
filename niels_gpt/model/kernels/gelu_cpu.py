"""GELU on an ARM CPU, out of vectorised operations: torch computes its gradient there number by number."""

from __future__ import annotations

import math
import platform
from typing import Any

import torch

_ARM = platform.machine().lower() in ("aarch64", "arm64")  # on x86 torch's is vectorised, and twice as fast as this


def supports(x: torch.Tensor) -> bool:
    trained = torch.is_grad_enabled() and x.requires_grad
    on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
    return _ARM and trained and on_cpu and x.dtype == torch.float32


def gelu(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _Gelu.apply(x)
    return out


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """x times the normal distribution below x. Its slope (that share, and x times the density) comes with it, of
        the same numbers, and is kept instead of x."""
        share = (x * 0.5**0.5).erf_().add_(1).mul_(0.5)
        out = x * share
        density = x.square().mul_(-0.5).exp_()
        ctx.save_for_backward(share.addcmul_(x, density, value=(2 * math.pi) ** -0.5))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope
